"""Classes of labels: how many there are, their names, and what the numbers of a table mean by them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from zoo.data.sampler import ResumableLoader
from zoo.data.tables.open_table import WORDS
from zoo.errors import DataError, OptionError

LEAST = 2


def refuse_few(classes: int | Sequence[str]) -> None:
    """Raises OptionError where there are not two classes to tell apart, or two of one name."""
    count = classes if isinstance(classes, int) else len(classes)
    if count < LEAST:
        named = f" ({', '.join(classes)})" if not isinstance(classes, int) and classes else ""
        raise OptionError("classes", f"{count}{named}, there must be at least two to tell apart")
    twice = (
        []
        if isinstance(classes, int)
        else sorted({name for name in classes if classes.count(name) > 1})
    )
    if twice:
        raise OptionError("classes", f"{', '.join(twice)} is named twice; name each class once")


def declared(table: Any) -> tuple[str, ...]:
    """The names of the classes that the column `label` numbers, as far as a table tells them."""
    return tuple(getattr((table.features or {}).get("label"), "names", None) or ())


def names(table: Any, streaming: bool) -> tuple[str, ...]:
    """Those that a table declares, or the words that label its rows, sorted. Raises OptionError where it does not tell."""
    kind = getattr((table.features or {}).get("label"), "dtype", None)
    if found := declared(table):
        return found
    if streaming and kind in (None, *WORDS):
        raise OptionError(
            "classes", "a stream does not tell the names of classes; list them as data.classes"
        )
    if kind == "null":
        raise OptionError(
            "classes",
            "no row has a label, so they do not tell; list the names of classes as data.classes",
        )
    if kind not in WORDS:
        raise OptionError(
            "classes",
            "the labels are plain numbers, which do not tell; say how many classes there are",
        )
    return tuple(sorted({label for label in table["label"] if label is not None}))


def order(own: Sequence[str], known: Sequence[str], count: int, title: str) -> tuple[int, ...]:
    """The class that each number of a table means, where it calls them `own` and a model `known`, or numbers `count` of them.

    Names are empty where there are none. Raises OptionError where the classes are not the same.
    """
    if own and (len(own) != count or (known and set(own) != set(known))):
        asked = f"{', '.join(known)}" if known else f"{count} classes"
        raise OptionError("classes", f"{title} has the classes {', '.join(own)}, not {asked}")
    return tuple(map(list(known).index, own)) if own and known else tuple(range(count))


class Fetched(NamedTuple):
    """A batch without its corrupt samples. `faults` says of each of those, by its number, where it is and what is wrong."""

    inputs: Tensor  # images uint8 [B, C, S, S], or tokens int64 [B, N]
    labels: Tensor  # int64 [B]
    faults: dict[int, str]


class Rows(Protocol):
    """Samples by their numbers in a table."""

    def fetch(self, numbers: Sequence[int]) -> Fetched: ...


class Reader(Protocol):
    """Makes samples of numbered rows, which are called `title` in messages."""

    @property
    def title(self) -> str: ...

    def fetched(self, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> Fetched: ...


class Asked:
    """The rows of a table, made samples of whenever they are fetched."""

    def __init__(self, table: Any, reader: Reader) -> None:
        self.table, self.reader = table, reader

    def fetch(self, numbers: Sequence[int]) -> Fetched:
        columns = self.table[list(numbers)]
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return self.reader.fetched(list(zip(numbers, rows, strict=True)))


class Some(Dataset[Fetched]):
    """Those of `rows` that `numbers` name, fetched by batches of keys: (epoch, index), or indices."""

    def __init__(self, rows: Rows, numbers: NDArray[Any]) -> None:
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> Fetched:
        return self.rows.fetch(
            self.numbers[[key if isinstance(key, int) else key[1] for key in keys]].tolist()
        )


def numbered(label: Any, classes: int) -> int:
    """A label that numbers one of `classes`. Raises ValueError where it is none."""
    if not isinstance(label, int) or not 0 <= label < classes:
        raise ValueError(f"label {label!r} is none of {classes} classes")
    return label


log = logging.getLogger("zoo")


class Corrupt:
    """The corrupt ones among `total` samples, of which a share is tolerated; this process meets those dealt out to it."""

    def __init__(self, share: float, total: int, processes: int = 1) -> None:
        self.share, self.total, self.alone = share, total // processes, processes == 1
        self.found: set[int] = set()

    def note(self, faults: Mapping[int, str]) -> None:
        """Raises DataError, naming one, where there are more than are tolerated."""
        fresh = {number: fault for number, fault in faults.items() if number not in self.found}
        self.found |= fresh.keys()
        for fault in fresh.values():
            count = f"{len(self.found)} of {self.total} samples"
            if len(self.found) > self.share * self.total:
                raise DataError(
                    f"{fault}; corrupt: {count}, more than data.skip {self.share:g} tolerates"
                )
            log.warning("skipped a corrupt sample: %s (%s)", fault, count)

    def sound(self, batches: Iterator[Fetched]) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels of batches; none where all of a batch is corrupt.

        Raises DataError there where other processes would wait for it.
        """
        for batch in batches:
            self.note(batch.faults)
            if len(batch.labels):
                yield batch.inputs, batch.labels
            elif not self.alone:
                raise DataError(
                    f"{next(iter(batch.faults.values()))}; no sample of its batch is sound"
                )


class SoundLoader(ResumableLoader):
    """A loader that skips corrupt ones. It fills pinned memory where there is CUDA."""

    corrupt: Corrupt

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self.corrupt.sound(super().__iter__())
