"""Your own texts with labels: parquet, JSON lines, CSV, folders of classes, or a set of the Hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from zoo.data.base import DataModule, Given
from zoo.data.corpus import classification
from zoo.data.corpus.classification import Reader, given
from zoo.data.corpus.table import refuse_others
from zoo.data.corpus.tokenizer import Bytes, Encoder, from_plain, load
from zoo.data.spec import Samples
from zoo.data.spec import TextClassificationSpec as Facts
from zoo.data.tables import dataset as labels
from zoo.data.tables import open_table
from zoo.data.tables.dataset import Asked, Corrupt, Some, SoundLoader
from zoo.data.tables.open_table import PARTS, Parts
from zoo.data.tables.stream import Stream, StreamLoader
from zoo.errors import OptionError
from zoo.registry import Between, Count, register


@register
class Passages(DataModule):
    """Texts of `path`: a folder of class folders of .txt files, a folder, a file or a glob of tables, `hub:owner/name` or
    `hub:owner/name:configuration`. Texts longer than `length` tokens are cut.

    `train` names a split; `val` and `test` name one each, or are shares of `train`. `text` and `label` name columns. Tokens
    are bytes, or those of `tokenizer`: a file of the library tokenizers, or `hub:owner/name`. `classes` says how many there
    are, or their names in the model's order, which are those of the table if that has any; it is only needed where labels
    are plain numbers, or a stream's are words. Up to a share of
    `skip` rows without text or with another label is skipped. `stream` and the order are as in the source `images`.
    """

    def __init__(
        self,
        seed: int,
        *,
        path: str | None = None,
        train: str = "train",
        val: float | str = 0.1,
        test: float | str = "test",
        text: str = "text",
        label: str = "label",
        classes: Count | tuple[str, ...] | None = None,
        tokenizer: str | None = None,
        length: Count = 256,
        batch_size: Count = 32,
        skip: Annotated[float, Between(0, 1)] = 0.0,
        stream: Stream | None = None,
        workers: Annotated[int, Between(0)] = 0,
    ) -> None:
        super().__init__()
        if path is None:
            raise OptionError("path", "missing: say where your texts are")
        if classes is not None:
            labels.refuse_few(classes)
        self.split_of = Parts(train, val, test)
        self.split_of.streamed(stream is not None, workers)
        self.seed, self.path, self.tokenizer, self.classes = seed, path, tokenizer, classes
        self.columns, self.length, self.batch_size, self.workers = (
            (text, label),
            length,
            batch_size,
            workers,
        )
        self.skip, self.stream = skip, stream
        self.loaders: dict[str, SoundLoader | StreamLoader] = {}

    @cached_property
    def vocabulary(self) -> Encoder:
        return Bytes() if self.tokenizer is None else load(self.tokenizer)

    @cached_property
    def samples(self) -> Facts:  # type: ignore[override]
        if isinstance(self.classes, int):
            return Facts(self.length, self.vocabulary, self.classes)
        names = self._names() if self.classes is None else self.classes
        labels.refuse_few(names)
        return Facts(self.length, self.vocabulary, len(names), names)

    def locate(self) -> None:
        """Raises OptionError too, where a table has other classes than are named."""
        opened = self._opened(streaming=True)
        for part in PARTS:
            table = self._table(opened, part)
            if self.classes is not None:
                self._order(table, part)

    def adopt(self, samples: Samples) -> None:
        if not isinstance(samples, Facts):
            raise OptionError("", "the model was not trained on texts with labels")
        own = self.classes if isinstance(self.classes, tuple) else ()
        count = len(own) or self.classes or samples.classes
        if count != samples.classes:
            raise OptionError(
                "classes", f"{count} classes, the model was trained with {samples.classes}"
            )
        labels.order(own, samples.names, samples.classes, "data.classes")
        self.vocabulary = from_plain(samples.vocabulary.plain())
        self.samples = Facts(self.length, self.vocabulary, samples.classes, samples.names or own)

    def setup(self, stage: str) -> None:
        opened = self._opened(self.stream is not None)
        for part in ("train", "val") if stage == "fit" else ("test",):
            self.loaders[part] = self._loader(self._table(opened, part), part)

    def read(self, paths: Sequence[Path], samples: Samples) -> Iterator[Given]:
        return given(paths, samples, self.length, self.batch_size)

    def loader(self, part: str) -> SoundLoader | StreamLoader:
        return self.loaders[part]

    def count(self, part: str) -> int:
        loader = self.loaders[part]
        return loader.counted if isinstance(loader, StreamLoader) else loader.order.all

    def _opened(self, streaming: bool) -> Mapping[str, Any]:
        return classification.opened(self.path, streaming) or open_table.opened(
            self.path, streaming
        )

    def _table(self, opened: Mapping[str, Any], part: str) -> Any:
        table = open_table.split(opened, self.split_of.split(part), self.columns, self.path)
        refuse_others(
            table,
            self.columns[0],
            f"{self.path}: column {self.columns[0]} of {self.split_of.split(part)}",
        )
        table = table.select_columns([*self.columns])
        given = dict(zip(self.columns, ("text", "label"), strict=True))
        return table.rename_columns({old: new for old, new in given.items() if old != new})

    def _names(self) -> tuple[str, ...]:
        streaming = self.stream is not None
        return labels.names(self._table(self._opened(streaming), "train"), streaming)

    def _order(self, table: Any, part: str) -> tuple[int, ...]:
        """The class that each number means among the labels of a table, which may name them, as the recipe may."""
        facts = self.samples
        listed = self.classes if isinstance(self.classes, tuple) else ()
        own = labels.declared(table) or listed
        return labels.order(
            own, facts.names, facts.classes, f"{self.path}, {self.split_of.split(part)},"
        )

    def _loader(self, table: Any, part: str) -> SoundLoader | StreamLoader:
        facts, split = self.samples, self.split_of.split(part)
        order = self._order(table, part)
        reader = Reader(self.vocabulary, self.length, order, facts.names, f"{self.path}, {split}")
        if self.stream is not None:
            corrupt = Corrupt(self.skip, self.stream.samples, self.share.processes)
            return StreamLoader(
                table,
                reader,
                self.batch_size,
                self.workers,
                corrupt,
                self.share,
                seed=self.seed,
                stream=self.stream if part == "train" else None,
            )
        some = Some(Asked(table, reader), self.split_of.numbers(part, len(table), self.seed))
        loader = SoundLoader(
            some, self.batch_size, self.seed, self.workers, self.share, training=part == "train"
        )
        loader.corrupt = Corrupt(self.skip, len(some), self.share.processes)
        return loader
