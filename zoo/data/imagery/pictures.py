"""Samples of images with labels, fetched by batches out of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from zoo.data.imagery.decoding import Decoding
from zoo.data.tables.rows import Asked, Fetched, numbered


class Reader:
    """Makes samples of the rows of a table. `title` is what they are called in messages, with their number."""

    def __init__(self, decoding: Decoding, classes: int, title: str) -> None:
        self.decoding, self.classes, self.title = decoding, classes, title

    def fetched(self, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> Fetched:
        """Samples of numbered rows."""
        images, labels, faults = [], [], {}
        for number, row in rows:
            try:
                label = numbered(row["label"], self.classes)
                images.append(self.decoding(content(row["image"])))
                labels.append(label)
            except (OSError, ValueError) as error:
                faults[number] = f"{self._named(number, row)}: {str(error).splitlines()[0]}"
        stacked = np.stack(images) if images else np.empty((0, *self.decoding.shape), np.uint8)
        return Fetched(torch.from_numpy(stacked), torch.tensor(labels, dtype=torch.long), faults)

    def _named(self, number: int, row: Mapping[str, Any]) -> str:
        told = (row.get("__url__"), (row["image"] or {}).get("path") or row.get("__key__"))
        return ", ".join([self.title, f"row {number}", *filter(None, told)])


class Encoded(Asked):
    """The rows of a table of images, decoded whenever they are fetched."""

    reader: Reader


def content(image: Mapping[str, Any] | None) -> bytes:
    """The bytes of an image that a table holds, or names the file of. Raises ValueError or OSError."""
    import fsspec

    if image and image.get("bytes"):
        return bytes(image["bytes"])
    if not image or not image.get("path"):
        raise ValueError("there is no image")
    with fsspec.open(image["path"], "rb") as file:
        return bytes(file.read())
