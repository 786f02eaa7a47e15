"""Stream text: rows are encoded and packed into windows as they are read, never held whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.data.corpus.tokenizer import CorpusVocabulary
from zoo.data.corpus.windows import Cursor, Packing, Window, build_batch
from zoo.data.sampler import ProcessShare
from zoo.data.spec import TextBatch
from zoo.data.tables.open_table import iterate_texts
from zoo.data.tables.stream import StreamingLoader, StreamOptions, split_batches
from zoo.errors import DataError, OptionError


class StreamedTextLoader(StreamingLoader):
    """Batches of windows of a streamed table with the column `text`.

    A checkpoint knows the row and the token where the next window begins: a resumed run reads rows
    before it again, without encoding them.
    """

    def __init__(
        self,
        table: Any,
        title: str,
        batch_size: int,
        workers: int,
        share: ProcessShare,
        *,
        vocabulary: CorpusVocabulary,
        length: int,
        separator: str,
        documents: bool,
        seed: int,
        stream: StreamOptions | None,
    ) -> None:
        super().__init__(table, title, batch_size, workers, share, seed=seed, stream=stream)
        self.vocabulary, self.separator, self.documents = vocabulary, separator, documents
        self.packing = Packing(self._encode, length, keep_rest=stream is None)
        self.cursor = self.first_cursor = Cursor()

    def _encode(self, number: int, text: str) -> NDArray[Any]:
        try:
            return self.vocabulary.encode_array(text)
        except OptionError as error:
            raise DataError(f"{self.title}, text {number}: {error}") from None

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self.cursor, self.first_cursor = self.first_cursor, Cursor()

    def __iter__(self) -> Iterator[TextBatch]:
        for cursor, batch in super().__iter__():
            self.cursor = Cursor(*cursor) if self.consumed else Cursor()
            yield batch
        if not self.delivered:
            needed = f"the {self.packing.length + 1} tokens of a window"
            problem = f"lacks {needed} for each of {self.share.world_size} processes"
            raise DataError(f"{self.title}: {problem}; choose a smaller data.length")
        self.cursor = Cursor()

    def read_batches(self) -> Iterator[tuple[int, tuple[Cursor, TextBatch]]]:
        left = None if self.samples is None else self.samples - self.consumed
        rows = iterate_texts(self.iterate_rows(), self.separator, self.title)
        windows = self.packing.pack((text for _, text in rows), self.cursor)
        limited = islice(windows, left)
        for batch in split_batches(limited, self.global_batch_size, self.share.world_size):
            yield len(batch), (batch[-1].end, self._collate(self.share.take(batch)))

    def _collate(self, windows: Sequence[Window]) -> TextBatch:
        tokens = np.stack([window.tokens for window in windows])  # [B, N + 1]
        num_targets = np.array([window.num_targets for window in windows])
        rows = np.stack([window.rows for window in windows]) if self.documents else None
        return build_batch(tokens, num_targets, rows, self.vocabulary.lengths)

    def state_dict(self) -> dict[str, int]:
        return {**super().state_dict(), **self.cursor._asdict()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.cursor = self.first_cursor = Cursor(state["row"], state["offset"])
