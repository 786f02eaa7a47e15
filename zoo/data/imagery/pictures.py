"""Samples of images with labels, fetched by batches out of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from zoo.data.imagery.decoding import Decoding


class Fetched(NamedTuple):
    """A batch without its corrupt samples. `faults` says of each of those, by its number, where it is and what is wrong."""

    images: Tensor  # uint8 [B, C, S, S]
    labels: Tensor  # int64 [B]
    faults: dict[int, str]


class Rows(Protocol):
    """Samples by their numbers in a table."""

    def fetch(self, numbers: Sequence[int]) -> Fetched: ...


class Pictures(Dataset[Fetched]):
    """Those of `rows` that `numbers` name, fetched by batches of keys: (epoch, index), or indices."""

    def __init__(self, rows: Rows, numbers: NDArray[Any]) -> None:
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> Fetched:
        return self.rows.fetch(self.numbers[[key if isinstance(key, int) else key[1] for key in keys]].tolist())


class Reader:
    """Makes samples of the rows of a table. `title` is what they are called in messages, with their number."""

    def __init__(self, decoding: Decoding, classes: int, title: str) -> None:
        self.decoding, self.classes, self.title = decoding, classes, title

    def fetched(self, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> Fetched:
        """Samples of numbered rows."""
        images, labels, faults = [], [], {}
        for number, row in rows:
            try:
                label = self._label(row["label"])
                images.append(self.decoding(content(row["image"])))
                labels.append(label)
            except (OSError, ValueError) as error:
                faults[number] = f"{self._named(number, row)}: {str(error).splitlines()[0]}"
        stacked = np.stack(images) if images else np.empty((0, *self.decoding.shape), np.uint8)
        return Fetched(torch.from_numpy(stacked), torch.tensor(labels, dtype=torch.long), faults)

    def _label(self, label: Any) -> int:
        if not isinstance(label, int) or not 0 <= label < self.classes:
            raise ValueError(f"label {label!r} is none of {self.classes} classes")
        return label

    def _named(self, number: int, row: Mapping[str, Any]) -> str:
        told = (row.get("__url__"), (row["image"] or {}).get("path") or row.get("__key__"))
        return ", ".join([self.title, f"row {number}", *filter(None, told)])


class Encoded:
    """The rows of a table, decoded whenever they are fetched."""

    def __init__(self, table: Any, reader: Reader) -> None:
        self.table, self.reader = table, reader

    def fetch(self, numbers: Sequence[int]) -> Fetched:
        columns = self.table[list(numbers)]
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return self.reader.fetched(list(zip(numbers, rows, strict=True)))


def content(image: Mapping[str, Any] | None) -> bytes:
    """The bytes of an image that a table holds, or names the file of. Raises ValueError or OSError."""
    import fsspec

    if image and image.get("bytes"):
        return bytes(image["bytes"])
    if not image or not image.get("path"):
        raise ValueError("there is no image")
    with fsspec.open(image["path"], "rb") as file:
        return bytes(file.read())
