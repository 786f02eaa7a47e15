"""Tables of images: their rows, decoded when fetched, or decoded once and cached on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.data.cache import CacheEntry, load_or_make
from zoo.data.tables.labelled_table import RowBatch, TableRows, check_label
from zoo.data.tables.open_table import rename_columns, select_split
from zoo.data.vision.decode import ImageDecoder, read_image

LOCATION_COLUMNS = ("__url__", "__key__")
"""The columns in which webdataset names a shard, and a sample in it."""
CHUNK = 1000
"""Rows that are decoded together."""


def select_images(tables: Mapping[str, Any], name: str, image: str, label: str, path: str) -> Any:
    """Return a table with the columns `image`, not decoded, `label`, and those that locate rows."""
    import datasets

    table = select_split(tables, name, (image, label), path)
    # first: a later step would decode the images of a stream
    table = table.cast_column(image, datasets.Image(decode=False))
    return rename_columns(table, {image: "image", label: "label"}, LOCATION_COLUMNS)


class ImageRowReader:
    """Reads images and labels from rows, which are called `title` in messages."""

    def __init__(self, decoder: ImageDecoder, classes: int, title: str) -> None:
        self.decoder, self.classes, self.title = decoder, classes, title

    def read_rows(self, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> RowBatch:
        """Read numbered rows."""
        images, labels, errors = [], [], {}
        for number, row in rows:
            try:
                label = check_label(row["label"], self.classes)
                images.append(self.decoder.decode(read_image(row["image"])))
                labels.append(label)
            except (OSError, ValueError) as error:
                cause = str(error).splitlines()[0]
                errors[number] = f"{self._locate(number, row)}: {cause}"
        stacked = self.decoder.stack(images)
        return RowBatch(stacked, torch.tensor(labels, dtype=torch.long), errors)

    def _locate(self, number: int, row: Mapping[str, Any]) -> str:
        names = (row.get("__url__"), (row["image"] or {}).get("path") or row.get("__key__"))
        return ", ".join([self.title, f"row {number}", *filter(None, names)])


class DecodedRows:
    """Rows of a table of images, decoded once and mapped from the cache.

    Args:
        table: The table, not decoded.
        reader: Decodes its rows.
        numbers: The rows to decode, ascending.
    """

    def __init__(self, table: Any, reader: ImageRowReader, numbers: NDArray[np.int64]) -> None:
        self.numbers = numbers
        entry = load_or_make(
            _digest_rows(table, reader, numbers), lambda: _decode_rows(table, reader, numbers)
        )
        shape = reader.decoder.shape
        self.images: NDArray[np.uint8] = entry.array.reshape(-1, *shape)  # [N, C, H, W]
        self.labels = np.array(entry.metadata["labels"], np.int64)
        self.errors = {int(row): str(error) for row, error in entry.metadata["errors"].items()}
        self.problem = entry.problem and entry.problem.replace("encoded texts", "decoded images")
        """Why the images could not be cached."""

    def fetch(self, numbers: Sequence[int]) -> RowBatch:
        """Return rows by their numbers in the table."""
        sound = [number for number in numbers if number not in self.errors]
        errors = {number: self.errors[number] for number in numbers if number in self.errors}
        at = np.searchsorted(self.numbers, sound)
        images, labels = torch.from_numpy(self.images[at]), torch.from_numpy(self.labels[at])
        return RowBatch(images, labels, errors)


def _digest_rows(table: Any, reader: ImageRowReader, numbers: NDArray[np.int64]) -> str:
    """Return the SHA-256 of all that decoded rows depend on."""
    options = [asdict(reader.decoder), reader.classes, reader.title]
    digest = hashlib.sha256(json.dumps(options).encode())
    digest.update(numbers.tobytes())
    for columns in table.select(numbers).iter(CHUNK):
        for image, label in zip(columns["image"], columns["label"], strict=True):
            content = b""
            # reported when it is decoded
            with suppress(OSError, ValueError):
                content = read_image(image)
            digest.update(hashlib.sha256(content).digest() + repr(label).encode())
    return digest.hexdigest()


def _decode_rows(table: Any, reader: ImageRowReader, numbers: NDArray[np.int64]) -> CacheEntry:
    rows = TableRows(table, reader)
    images = np.zeros((len(numbers), *reader.decoder.shape), np.uint8)
    labels = np.full(len(numbers), -1)
    errors: dict[int, str] = {}
    for first in range(0, len(numbers), CHUNK):
        chunk = numbers[first : first + CHUNK].tolist()
        batch = rows.fetch(chunk)
        sound = [first + at for at, number in enumerate(chunk) if number not in batch.errors]
        images[sound], labels[sound] = batch.inputs.numpy(), batch.labels.numpy()
        errors |= batch.errors
    return CacheEntry({"labels": labels.tolist(), "errors": errors}, images.reshape(-1))
