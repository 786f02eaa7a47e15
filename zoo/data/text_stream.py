"""Text in a column of a table that is streamed, from the Hub or your own files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from zoo.data.base import DataModule
from zoo.data.corpus.encoded_rows import EncodedRows, encode_table
from zoo.data.corpus.tokenizer import Bytes, CorpusVocabulary, load_tokenizer, vocabulary_from_dict
from zoo.data.corpus.windows import Cursor, Packing, Window, build_batch
from zoo.data.sampler import ProcessShare
from zoo.data.spec import DataSpec, TextBatch, TextSpec
from zoo.data.tables.open_table import SplitOptions, iterate_texts, open_tables, select_text
from zoo.data.tables.stream import StreamingLoader, StreamOptions, split_batches
from zoo.errors import DataError, OptionError
from zoo.options import Between, Count
from zoo.registry import register


@register
class TextStream(DataModule):
    """Windows of `length` tokens packed from rows of `path`: a folder, a file or a glob of files.

    `hub:owner/name` or `hub:owner/name:configuration` is a dataset of the Hub. `train`, `val` and
    `test` name splits, `text` names the column. `between` follows each row and may be a special
    token of the tokenizer; rows without text are left out. Tokens are bytes, or those of
    `tokenizer`: a file of the library tokenizers, or `hub:owner/name`. With `documents` no token
    attends to another row or is predicted from it.

    A training epoch has `samples` windows, from rows that are shuffled in a buffer of `buffer`
    rows. The order depends only on (seed, epoch, buffer). val and test are read completely. Each
    process reads and encodes everything, with at most one worker, and keeps its share of batches.
    With `tokenizer_workers`, so many workers of each process first encode the rows of all files,
    and the cache keeps their tokens; batches are the same.
    """

    def __init__(
        self,
        seed: int,
        *,
        path: str | None = None,
        train: str = "train",
        val: str = "validation",
        test: str = "test",
        text: str = "text",
        between: str = "\n\n",
        tokenizer: str | None = None,
        length: Count = 128,
        batch_size: Count = 32,
        samples: Count = 10_000,
        buffer: Count = 1_000,
        documents: bool = False,
        workers: Annotated[int, Between(0, 1)] = 0,
        tokenizer_workers: Annotated[int, Between(0)] = 0,
        prefetch_factor: Count | None = None,
    ) -> None:
        super().__init__()
        self.set_prefetch_factor(prefetch_factor, workers)
        if path is None:
            hint = "set it to the location of your table, or to a dataset as hub:owner/name"
            raise OptionError("path", f"missing: {hint}")
        self.splits = SplitOptions(train, val, test)
        self.seed, self.path, self.tokenizer, self.column = seed, path, tokenizer, text
        self.separator, self.documents, self.workers = between, documents, workers
        self.length, self.batch_size = length, batch_size
        self.tokenizer_workers = tokenizer_workers
        self.stream = StreamOptions(samples=samples, buffer=buffer)
        self.loaders: dict[str, StreamedTextLoader] = {}

    @cached_property
    def vocabulary(self) -> CorpusVocabulary:
        return Bytes() if self.tokenizer is None else load_tokenizer(self.tokenizer)

    @cached_property
    def spec(self) -> TextSpec:  # type: ignore[override]
        return TextSpec(self.length, self.vocabulary)

    has_equal_shares = False  # a table may have fewer windows than an epoch

    @property
    def has_full_windows(self) -> bool:  # type: ignore[override]
        return not self.documents

    @property
    def windowing(self) -> str:  # type: ignore[override]
        return "side by side"

    def check_source(self) -> None:
        tables = open_tables(self.path, streaming=True)
        for split in ("train", "val", "test"):
            self._select_table(tables, split)

    def adopt_spec(self, spec: DataSpec) -> None:
        if not isinstance(spec, TextSpec):
            raise OptionError("", "the model was not trained on text")
        self.vocabulary = vocabulary_from_dict(spec.vocabulary.to_dict())
        self.spec = TextSpec(self.length, self.vocabulary)

    def setup(self, stage: str) -> None:
        # Only train is shuffled and has a fixed number of samples.
        tables = open_tables(self.path, streaming=True)
        for split in ("train", "val") if stage == "fit" else ("test",):
            table, encoded = self._select_table(tables, split), None
            title = f"{self.path}, stream of {self.splits.find_table(split)}"
            if self.tokenizer_workers:
                # before training, or each process would encode all text during it
                encoded = EncodedRows(self.vocabulary, self.separator, title)
                encode_table(encoded, table, self.tokenizer_workers, self.share)
            self.loaders[split] = StreamedTextLoader(
                table,
                title,
                self.batch_size,
                self.workers,
                self.share,
                vocabulary=self.vocabulary,
                length=self.length,
                separator=self.separator,
                documents=self.documents,
                seed=self.seed,
                stream=self.stream if split == "train" else None,
                encoded=encoded,
            )

    def _select_table(self, tables: Mapping[str, Any], split: str) -> Any:
        return select_text(tables, self.splits.find_table(split), self.column, self.path)

    def build_loader(self, split: str) -> StreamedTextLoader:
        return self.loaders[split]

    def count_samples(self, split: str) -> int:
        return self.loaders[split].delivered


class StreamedTextLoader(StreamingLoader):
    """A loader of windows from the column `text` of a streamed table.

    A checkpoint stores the row and the token at which the next window starts. A resumed run reads
    earlier rows again, without encoding them. `encoded` loads tokens that the cache has.
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
        encoded: EncodedRows | None = None,
    ) -> None:
        super().__init__(table, title, batch_size, workers, share, seed=seed, stream=stream)
        self.vocabulary, self.separator, self.documents = vocabulary, separator, documents
        self.encoded = encoded
        # In evaluation every token is a target, including those of a remainder.
        self.packing = Packing(self._encode, length, keep_rest=stream is None)
        self.cursor = self.first_cursor = Cursor()

    def _encode(self, number: int, row: str | NDArray[Any]) -> NDArray[Any]:
        if not isinstance(row, str):
            return row
        try:
            return self.vocabulary.encode_array(row)
        except OptionError as error:
            raise DataError(f"{self.title}, text {number}: {error}") from None

    def read_rows(self, table: Any) -> Iterator[Any]:
        return super().read_rows(table) if self.encoded is None else self.encoded.read(table)

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self.cursor, self.first_cursor = self.first_cursor, Cursor()

    def __iter__(self) -> Iterator[TextBatch]:
        for cursor, batch in super().__iter__():
            # After the last batch of an epoch the next one starts at the first row.
            self.cursor = Cursor(*cursor) if self.consumed else Cursor()
            yield batch
        if not self.delivered:
            needed = f"the {self.packing.length + 1} tokens of a window"
            message = f"lacks {needed} for each of {self.share.world_size} processes"
            raise DataError(f"{self.title}: {message}; choose a smaller data.length")
        self.cursor = Cursor()

    def read_batches(self) -> Iterator[tuple[int, tuple[Cursor, TextBatch]]]:
        # Windows start at the cursor of a checkpoint, and end with the samples of the epoch.
        left = None if self.samples is None else self.samples - self.consumed
        texts: Iterator[Any]
        if self.encoded is None:
            rows = iterate_texts(self.iterate_rows(), self.separator, self.title)
            texts = (content for _, content in rows)
        else:
            texts = (tokens for tokens in self.iterate_rows() if len(tokens))
        windows = self.packing.pack(texts, self.cursor)
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
