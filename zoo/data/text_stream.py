"""Text in a column of a table that is streamed and never held whole, the Hub's included."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any

from zoo.data.base import DataModule
from zoo.data.corpus.streaming import TextLoader, Texts
from zoo.data.corpus.table import texts
from zoo.data.corpus.tokenizer import Bytes, Encoder, from_plain, load
from zoo.data.spec import Samples
from zoo.data.spec import TextSpec as Facts
from zoo.data.tables import open_table
from zoo.data.tables.stream import Stream
from zoo.errors import OptionError
from zoo.registry import Between, Count, register


@register
class TextStream(DataModule):
    """Windows of `length` tokens packed from rows of `path` that follow one another: a folder, a file or a glob of files,
    `hub:owner/name` or `hub:owner/name:configuration`.

    `train`, `val` and `test` name splits, `text` the column. `between` comes after each row, and may be a special token of
    the tokenizer; rows without text are left out. Tokens are bytes, or those of `tokenizer`: a file of the library
    tokenizers, or `hub:owner/name`. With `documents` no token sees another row, or is asked across its end.

    `samples` windows are an epoch of training, of rows drawn out of a `buffer` of so many, in an order that is a function of
    (seed, epoch, buffer) alone; val and test are all there is. Each process reads all of it and makes tokens of it, with at
    most one worker, and keeps its share of each batch.
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
    ) -> None:
        super().__init__()
        if path is None:
            raise OptionError(
                "path", "missing: say where your table is, or name a set as hub:owner/name"
            )
        if train in (val, test):
            raise OptionError("train", f"{train} would be both trained and measured on")
        self.seed, self.path, self.tokenizer = seed, path, tokenizer
        self.splits, self.column, self.between = (
            {"train": train, "val": val, "test": test},
            text,
            between,
        )
        self.length, self.batch_size, self.workers, self.documents = (
            length,
            batch_size,
            workers,
            documents,
        )
        self.stream = Stream(samples=samples, buffer=buffer)
        self.loaders: dict[str, TextLoader] = {}

    @cached_property
    def vocabulary(self) -> Encoder:
        return Bytes() if self.tokenizer is None else load(self.tokenizer)

    @cached_property
    def samples(self) -> Facts:  # type: ignore[override]
        return Facts(self.length, self.vocabulary)

    @property
    def windows(self) -> str:  # type: ignore[override]
        return "side by side"

    def locate(self) -> None:
        opened = open_table.opened(self.path, streaming=True)
        for part in self.splits:
            self._table(opened, part)

    def adopt(self, samples: Samples) -> None:
        if not isinstance(samples, Facts):
            raise OptionError("", "the model was not trained on text")
        self.vocabulary = from_plain(samples.vocabulary.plain())
        self.samples = Facts(self.length, self.vocabulary)

    def setup(self, stage: str) -> None:
        opened = open_table.opened(self.path, streaming=True)
        for part in ("train", "val") if stage == "fit" else ("test",):
            title = f"{self.path}, stream of {self.splits[part]}"
            found = Texts(self._table(opened, part), self.between, self.vocabulary, title)
            self.loaders[part] = TextLoader(
                found,
                self.length,
                self.batch_size,
                self.workers,
                self.share,
                documents=self.documents,
                seed=self.seed,
                stream=self.stream if part == "train" else None,
            )

    def _table(self, opened: Mapping[str, Any], part: str) -> Any:
        return texts(opened, self.splits[part], self.column, self.path)

    def loader(self, part: str) -> TextLoader:
        return self.loaders[part]

    def count(self, part: str) -> int:
        return self.loaders[part].counted
