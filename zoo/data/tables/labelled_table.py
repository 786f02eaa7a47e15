"""Tables of labelled samples, in memory or streamed: classes, splits and corrupt rows."""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, NamedTuple, Protocol, Self, TypedDict

from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from zoo.data.base import DataModule
from zoo.data.baselines import Baselines, fit_labels
from zoo.data.class_counts import ClassCounts, check_counts, count_samples
from zoo.data.sampler import Key, ProcessShare, ResumableLoader
from zoo.data.spec import ImageSpec, TextClassificationSpec, name_classes
from zoo.data.tables.open_table import TEXT_TYPES, SplitOptions
from zoo.data.tables.stream import StreamingLoader, StreamOptions, split_batches
from zoo.errors import DataError, OptionError
from zoo.options import Between, Count

log = logging.getLogger("zoo")

MIN_CLASSES = 2
MAX_CLASSES = 2**20
"""Largest number of classes: names, counts and the last layer hold each of them in memory."""
MAX_LISTED = 10
"""Number of class names that a message lists."""
WHOLE_NUMBER = re.compile(r"(-?(?:0|[1-9]\d{0,17}))(?:\.0*)?")


def check_classes(classes: int | Sequence[str]) -> None:
    """Check the number or the names of classes.

    Raises:
        OptionError: There are fewer than two classes, or two have the same name.
    """
    names = () if isinstance(classes, int) else tuple(classes)
    count = classes if isinstance(classes, int) else len(classes)
    if count < MIN_CLASSES:
        listed = f" ({', '.join(names)})" if names else ""
        raise OptionError("classes", f"{count}{listed}, expected at least {MIN_CLASSES}")
    if count > MAX_CLASSES:
        message = f"{count:,} names, counts and outputs of a model do not fit into memory"
        raise OptionError("classes", f"{message}, expected at most {MAX_CLASSES:,}")
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise OptionError("classes", f"{', '.join(repeated)} is named twice; name each class once")


def list_declared_classes(table: Any) -> tuple[str, ...]:
    """Return the class names that the column `label` of a table declares, or ()."""
    return tuple(getattr((table.features or {}).get("label"), "names", None) or ())


def list_classes(table: Any, streaming: bool) -> tuple[str, ...]:
    """Return the class names of a table: those that it declares, or the strings among its labels.

    Raises:
        OptionError: The table does not determine them.
    """
    kind = getattr((table.features or {}).get("label"), "dtype", None)
    if declared := list_declared_classes(table):
        return declared
    # Strings are collected from all rows, which a stream cannot do before training.
    if streaming and kind in (None, *TEXT_TYPES):
        message = "a stream does not determine the names of classes; list them as data.classes"
    elif kind == "null":
        message = "no row has a label; list the names of classes as data.classes"
    elif kind == "bool":
        return ("false", "true")
    elif kind not in TEXT_TYPES:
        is_number = str(kind).startswith(("int", "uint", "float"))
        message = f"the labels are {'plain numbers' if is_number else kind}"
        message += "; set the number of classes, or list their names"
    else:
        names = sorted({label for label in table["label"] if label})
        _check_spellings(names)
        return tuple(names)
    raise OptionError("classes", message)


def _check_spellings(names: Sequence[str]) -> None:
    """Raise OptionError if two names are one number."""
    spelled: dict[int, str] = {}
    for name in names:
        number = read_number(name)
        if number is not None and spelled.setdefault(number, name) != name:
            message = f"{spelled[number]} and {name} are one number; list the names of classes"
            raise OptionError("classes", message)


def map_classes(
    own: Sequence[str], known: Sequence[str], count: int, title: str
) -> tuple[int, ...]:
    """Return the model's class for each class number of a table.

    Args:
        own: The table's class names; empty if it has none.
        known: The model's class names; empty if it has none.
        count: Number of classes of the model.
        title: Name of the table in messages.

    Raises:
        OptionError: The table and the model have different classes.
    """
    if own and (len(own) != count or (known and set(own) != set(known))):
        expected = ", ".join(known) if known else f"{count} classes"
        raise OptionError("classes", f"{title} has the classes {', '.join(own)}, not {expected}")
    return tuple(map(list(known).index, own)) if own and known else tuple(range(count))


def spell_label(value: Any) -> str:
    """Return a label as a file says it; an empty string if there is none.

    A whole number is one without a point: an empty cell makes floating-point numbers of a column.

    Raises:
        ValueError: It is neither text nor a number.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int | float | str):
        raise ValueError(f"label {value!r:.60} is neither text nor a number; write it as text")
    return str(value)


def read_number(label: str) -> int | None:
    """Return the whole number that a label is; None for text, such as 007."""
    match = WHOLE_NUMBER.fullmatch(label)
    return None if match is None else int(match[1])


def read_label(
    value: Any, classes: int, names: Sequence[str] = (), order: Sequence[int] | None = None
) -> int:
    """Return the class of a label: its place among the names, else the number that it is.

    Args:
        value: The value of a row.
        classes: Number of classes.
        names: The class names that a label may be; if one of them is a number, labels do not count.
        order: The class of each number; by default the number itself.

    Raises:
        ValueError: There is no label, or it is none of the classes.
    """
    label = spell_label(value)
    if not label:
        raise ValueError("there is no label")
    number = read_number(label)
    for spelled in (label, str(number)):
        if spelled in names:
            return list(names).index(spelled)
    # true is no number where classes have names
    counts = not any(read_number(name) is not None for name in names)
    if isinstance(value, bool) and not names and classes == 2:
        number = int(value)
    if number is None or not counts or not 0 <= number < classes:
        listed = f" ({', '.join(names)})" if 0 < len(names) <= MAX_LISTED else ""
        raise ValueError(f"label {value!r} is none of {classes} classes{listed}")
    return number if order is None else order[number]


class RowBatch(NamedTuple):
    """A batch without its corrupt rows."""

    inputs: Tensor | tuple[Tensor, ...]
    """Images uint8 [B, C, H, W], tokens int64 [B, N], or several inputs of a model."""
    labels: Tensor
    """Labels, int64 [B]."""
    errors: dict[int, str]
    """Place and problem of each corrupt row, by number."""


class RowReader(Protocol):
    """A reader of samples from numbered rows; messages name the rows by `title`."""

    @property
    def title(self) -> str: ...

    def read_rows(
        self, rows: Sequence[tuple[int, Mapping[str, Any]]], epoch: int | None = None
    ) -> RowBatch:
        """Read numbered rows; in an epoch of training they may be augmented."""
        ...


class LabelReader(RowReader, Protocol):
    """A reader of samples with one label each."""

    def read_label(self, value: Any) -> int:
        """Return the class of a value of the column `label`. Raises ValueError if it has none."""
        ...


class TableRows:
    """The rows of a table, which are read whenever they are fetched."""

    def __init__(self, table: Any, reader: RowReader) -> None:
        self.table, self.reader = table, reader

    def fetch(self, numbers: Sequence[int], epoch: int | None = None) -> RowBatch:
        """Read rows by their numbers, those of an epoch of training if it is given."""
        # `datasets` returns columns: {name: values}.
        columns = self.table[list(numbers)]
        values = zip(*columns.values(), strict=True)
        rows = [dict(zip(columns, row, strict=True)) for row in values]
        return self.reader.read_rows(list(zip(numbers, rows, strict=True)), epoch)


class FetchesRows(Protocol):
    """A source of samples by row number: `TableRows`, or images that are decoded already."""

    def fetch(self, numbers: Sequence[int], epoch: int | None = None) -> RowBatch: ...


class RowSubset(Dataset[RowBatch]):
    """Some rows of a table, fetched by batches of keys."""

    def __init__(self, rows: FetchesRows, numbers: NDArray[Any]) -> None:
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitems__(self, keys: Sequence[Key]) -> RowBatch:
        indices = [key if isinstance(key, int) else key[1] for key in keys]
        # all keys of a batch are of one epoch
        epoch = keys[0][0] if keys and isinstance(keys[0], tuple) else None
        return self.rows.fetch(self.numbers[indices].tolist(), epoch)


class SkipBudget:
    """A limit on the fraction of corrupt samples that are skipped.

    Each process counts its own samples.
    """

    def __init__(self, fraction: float, total: int, world_size: int = 1) -> None:
        # A sample is counted once, however often it is read.
        self.fraction, self.total = fraction, total // world_size
        self.is_alone = world_size == 1
        self.corrupt: set[int] = set()

    def note(self, errors: Mapping[int, str]) -> None:
        """Log new corrupt samples.

        Raises:
            DataError: There are more than the limit. The message names one.
        """
        # rows are read again in each epoch
        new = {number: error for number, error in errors.items() if number not in self.corrupt}
        self.corrupt |= new.keys()
        for error in new.values():
            count = f"{len(self.corrupt)} of {self.total} samples"
            if len(self.corrupt) > self.fraction * self.total:
                limit = f"more than data.skip {self.fraction:g} tolerates"
                raise DataError(f"{error}; corrupt: {count}, {limit}")
            log.warning("skipped a corrupt sample: %s (%s)", error, count)

    def skip_corrupt(self, batches: Iterator[RowBatch]) -> Iterator[tuple[Tensor, ...]]:
        """Yield the inputs and labels of batches that have sound samples.

        Raises:
            DataError: A batch has none, and other processes would wait for it.
        """
        for batch in batches:
            self.note(batch.errors)
            # A batch without samples is skipped, unless other processes take a step with theirs.
            if len(batch.labels):
                # a loader makes a list of a tuple
                inputs = batch.inputs
                yield (*((inputs,) if isinstance(inputs, Tensor) else inputs), batch.labels)
            elif not self.is_alone:
                error = next(iter(batch.errors.values()))
                raise DataError(f"{error}; all samples of its batch are corrupt")


class SkippingLoader(ResumableLoader):
    """A loader that skips corrupt rows."""

    budget: SkipBudget

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self.budget.skip_corrupt(super().__iter__())


class StreamedRowLoader(StreamingLoader):
    """A loader of batches from a streamed table, without its corrupt rows."""

    def __init__(
        self,
        table: Any,
        reader: RowReader,
        batch_size: int,
        workers: int,
        budget: SkipBudget,
        share: ProcessShare,
        names: Sequence[str],
        *,
        seed: int,
        stream: StreamOptions | None,
    ) -> None:
        super().__init__(table, reader.title, batch_size, workers, share, seed=seed, stream=stream)
        self.reader, self.budget, self.names = reader, budget, names

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        # Row numbers of a stream are valid only in one epoch.
        self.budget.corrupt.clear()

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        is_counted = self.samples is not None and self.epoch == 0 and self.first == 0
        labels = Counter[int]()
        for batch in self.budget.skip_corrupt(super().__iter__()):
            if is_counted:
                labels.update(batch[-1].tolist())
            yield batch
        if is_counted:
            assert self.samples is not None
            read = labels.total()
            counts = count_samples(labels, len(self.names), read, self.samples, self.title)
            # later epochs, and other processes, may read other rows
            check_counts(counts, self.names, "train", may_refuse=False)

    def read_batches(self) -> Iterator[tuple[int, RowBatch]]:
        rows = islice(enumerate(self.iterate_rows()), self.consumed, self.samples)
        for batch in split_batches(rows, self.global_batch_size, self.share.world_size):
            epoch = None if self.stream is None else self.epoch
            yield len(batch), self.reader.read_rows(self.share.take(batch), epoch)


class SplitTableOptions(TypedDict, total=False):
    """Options of tables with splits, in memory, which a source hands to `LabelledTable`."""

    path: str | None
    train: str
    val: float | str
    test: float | str
    skip: Annotated[float, Between(0, 1)]
    workers: Annotated[int, Between(0)]
    prefetch_factor: Count | None


class LabelledTableOptions(SplitTableOptions, total=False):
    """These, and those of tables of labels, which may be streamed."""

    label: str
    stream: StreamOptions | None


class LabelledTable(DataModule):
    """The base class of sources that read labelled samples from a table, in memory or streamed.

    A subclass opens the table of a split and makes the reader of its rows.

    Args:
        seed: The seed of the recipe.
        noun: What the samples are, such as "images".
        batch_size: Samples of a process in a batch.
        path: Where the table is.
        train: The name of the split to train on.
        val: The name of a split, or a fraction of `train`.
        test: The name of a split, or a fraction of `train`.
        label: The name of the column of labels.
        skip: Largest fraction of rows that may be corrupt, and are skipped.
        stream: How rows are streamed. None: they are held in memory.
        workers: Number of processes that load batches.
        prefetch_factor: Number of batches that each worker loads in advance; None: as torch does.
    """

    spec: ImageSpec | TextClassificationSpec

    def __init__(
        self,
        seed: int,
        noun: str,
        batch_size: int,
        *,
        path: str | None = None,
        train: str = "train",
        val: float | str = 0.1,
        test: float | str = "test",
        label: str = "label",
        skip: Annotated[float, Between(0, 1)] = 0.0,
        stream: StreamOptions | None = None,
        workers: Annotated[int, Between(0)] = 0,
        prefetch_factor: Count | None = None,
    ) -> None:
        super().__init__()
        if path is None:
            raise OptionError("path", f"missing: set it to the location of your {noun}")
        splits = SplitOptions(train, val, test)
        self.set_prefetch_factor(prefetch_factor, workers)
        self.label = label
        if stream is not None:
            splits.check_streaming(workers)
        self.seed, self.path, self.splits, self.batch_size = seed, path, splits, batch_size
        self.skip, self.stream, self.workers = skip, stream, workers
        self.subsets: dict[str, RowSubset] = {}
        self.streams: dict[str, StreamedRowLoader] = {}

    @property
    def has_equal_shares(self) -> bool:  # type: ignore[override]
        # a process leaves out its own corrupt rows, and a stream may end early
        return self.stream is None and not self.skip

    @abstractmethod
    def open_tables(self, streaming: bool) -> Mapping[str, Any]:
        """Open the tables of the path, by name."""

    @abstractmethod
    def select_table(self, tables: Mapping[str, Any], split: str) -> Any:
        """Return the table of a split, with the columns that its reader needs."""

    @abstractmethod
    def build_reader(self, table: Any, split: str, title: str) -> LabelReader:
        """Return the reader of a split's rows."""

    def hold_rows(self, table: Any, split: str, numbers: NDArray[Any]) -> FetchesRows:
        """Return a source of the rows of a split that is not streamed."""
        title = f"{self.path}, {self.splits.find_table(split)}"
        return TableRows(table, self.build_reader(table, split, title))

    @cached_property
    def tables(self) -> Mapping[str, Any]:
        """The tables of the path by name, which are opened once."""
        return self.open_tables(self.stream is not None)

    def count_classes(self, split: str) -> ClassCounts | None:
        """Count all labels of a split. A stream is counted while it is read."""
        if self.stream is not None:
            return None
        table, place = self.select_table(self.tables, split), f"{self.path}, {split}"
        read_label = self.build_reader(table, split, place).read_label
        column = table.select_columns("label")["label"][:]
        numbers = self.splits.draw_rows(split, len(column), self.seed).tolist()
        values = [column[number] for number in numbers]
        # a value is read once, however many rows have it; true, 1 and 1.0 are different values
        keys = [(type(value), repr(value)) for value in values]
        rows, labels = Counter(keys), Counter[int]()
        for key, value in dict(zip(keys, values, strict=True)).items():
            # rows without a label are corrupt, which the loader reports
            with suppress(ValueError):
                labels[read_label(value)] += rows[key]
        return count_samples(labels, self.spec.classes, len(values), len(values), place)

    def setup(self, stage: str) -> None:
        tables = self.tables
        for split in ("train", "val") if stage == "fit" else ("test",):
            table = self.select_table(tables, split)
            if self.stream is not None:
                self.streams[split] = self._build_stream(table, split, self.stream)
            # Tables stay in memory between fit and test, so that nothing is decoded twice.
            elif split not in self.subsets:
                numbers = self.splits.draw_rows(split, len(table), self.seed)
                self.subsets[split] = RowSubset(self.hold_rows(table, split, numbers), numbers)

    def _build_stream(self, table: Any, split: str, stream: StreamOptions) -> StreamedRowLoader:
        reader = self.build_reader(table, split, f"{self.path}, stream of {split}")
        return StreamedRowLoader(
            table,
            reader,
            self.batch_size,
            self.workers,
            SkipBudget(self.skip, stream.samples, self.share.world_size),
            self.share,
            name_classes(self.spec, self.spec.classes),
            seed=self.seed,
            stream=stream if split == "train" else None,
        )

    def build_loader(self, split: str) -> SkippingLoader | StreamedRowLoader:
        if split in self.streams:
            return self.streams[split]
        rows, is_training = self.subsets[split], split == "train"
        loader = SkippingLoader(
            rows, self.batch_size, self.seed, self.workers, self.share, training=is_training
        )
        loader.budget = SkipBudget(self.skip, len(rows), self.share.world_size)
        return loader

    def count_samples(self, split: str) -> int:
        if split in self.streams:
            return self.streams[split].delivered
        return len(self.subsets[split])

    def fit_baselines(self) -> Callable[[Self], Baselines]:
        # A stream would have to be read once more.
        if self.streams:
            return super().fit_baselines()
        fitted = fit_labels(self.subsets, self.spec)
        return lambda tested: fitted.score(tested.subsets["test"])
