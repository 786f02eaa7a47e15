"""Samples with labels, fetched by batches out of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset


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
        return self.rows.fetch(self.numbers[[key if isinstance(key, int) else key[1] for key in keys]].tolist())


def numbered(label: Any, classes: int) -> int:
    """A label that numbers one of `classes`. Raises ValueError where it is none."""
    if not isinstance(label, int) or not 0 <= label < classes:
        raise ValueError(f"label {label!r} is none of {classes} classes")
    return label
