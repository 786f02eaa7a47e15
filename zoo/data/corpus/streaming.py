"""Text streamed from wherever it is, made tokens on the way, and never held whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from zoo.data.corpus.table import joined
from zoo.data.corpus.tokenizer import Encoder
from zoo.data.corpus.windows import Packing, Place, Window, windows
from zoo.data.sampler import Share
from zoo.data.spec import Windows
from zoo.data.tables.open_table import rows
from zoo.data.tables.stream import Epochs, Stream, batched, loaded, ordered
from zoo.errors import DataError, OptionError


@dataclass(frozen=True)
class Texts:
    """The texts of a table, `between` after each. `title` is what they are called in messages, with their number."""

    table: Any
    between: str
    vocabulary: Encoder
    title: str

    def read(self, rows: Iterable[Any]) -> Iterator[str]:
        """Those of rows that have one."""
        named = ((f"{self.title}, row {number}", row["text"]) for number, row in enumerate(rows))
        return (text for name, found in named if (text := joined(found, self.between, name)))

    def encode(self, number: int, text: str) -> NDArray[Any]:
        try:
            return self.vocabulary.numbers(text)
        except OptionError as error:
            raise DataError(f"{self.title}, text {number}: {error}") from None


class TextLoader(Epochs):
    """Batches of windows. With `stream` it is a training epoch, `ordered`; without, all there is, as it comes.

    A resumed run reads again, without making tokens, the rows that it is done with: a checkpoint knows the place.
    """

    def __init__(
        self,
        texts: Texts,
        length: int,
        size: int,
        workers: int,
        share: Share,
        *,
        documents: bool,
        seed: int,
        stream: Stream | None,
    ) -> None:
        super().__init__(None if stream is None else stream.samples, size * share.processes, share)
        self.texts, self.workers, self.documents, self.seed, self.stream = (
            texts,
            workers,
            documents,
            seed,
            stream,
        )
        self.packing = Packing(texts.encode, length, whole=stream is None)
        self.place = self.start = Place()

    def begin(self) -> None:
        super().begin()
        self.place, self.start = self.start, Place()

    def rows(self) -> Iterable[Any]:
        if self.stream is None:
            return rows(self.texts.table, self.texts.title)
        return ordered(
            self.texts.table, self.texts.title, self.seed, self.epoch, self.stream.buffer
        )

    def __iter__(self) -> Iterator[Windows]:
        self.begin()
        for count, place, batch in loaded(Batches(self), self.workers):
            self.advance(count)
            self.place = Place(*place) if self.given else Place()
            yield batch
        if not self.counted:
            told = f"has not the {self.packing.length + 1} tokens of a window for each of {self.share.processes} processes"
            raise DataError(f"{self.texts.title}: {told}; choose a smaller data.length")
        self.given, self.place = 0, Place()  # also where there was less than was said

    def state_dict(self) -> dict[str, int]:
        return {**super().state_dict(), **self.place._asdict()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.place = self.start = Place(state["row"], state["offset"])


class Batches(IterableDataset[tuple[int, Place, Windows]]):
    """The lengths of batches of all processes, the place after each, and a process' share of it."""

    def __init__(self, loader: TextLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[tuple[int, Place, Windows]]:
        own = self.loader
        left = None if own.samples is None else own.samples - own.given
        found = own.packing.windows(own.texts.read(own.rows()), own.place)
        for batch in batched(islice(found, left), own.together, own.share.processes):
            yield len(batch), batch[-1].after, self._collated(own.share.of(batch))

    def _collated(self, batch: Sequence[Window]) -> Windows:
        length = self.loader.packing.length
        tokens = np.stack([window.tokens for window in batch])  # [B, N + 1]
        asked = np.arange(length, 0, -1) <= np.array([window.asked for window in batch])[:, None]
        rows = np.stack([window.rows for window in batch]) if self.loader.documents else None
        return windows(tokens, asked, rows, self.loader.texts.vocabulary.lengths)
