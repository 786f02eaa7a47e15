"""Images decoded once, kept on disk under a sum of their contents, and mapped into memory after that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.data.cache import Entry, kept
from zoo.data.imagery.pictures import Encoded, content
from zoo.data.tables.rows import Fetched

AT_ONCE = 1000  # rows


class Decoded:
    """Those rows of a table that `numbers` name, ascending. `faults` are of those that could not be decoded; `problem` says
    why nothing could be kept.
    """

    def __init__(self, encoded: Encoded, numbers: NDArray[np.int64]) -> None:
        self.numbers = numbers
        entry = kept(_sum(encoded, numbers), lambda: _decoded(encoded, numbers))
        shape = encoded.reader.decoding.shape
        self.images: NDArray[np.uint8] = entry.tokens.reshape(-1, *shape)  # [N, C, S, S]
        self.labels = np.array(entry.facts["labels"], np.int64)
        self.faults = {int(number): str(fault) for number, fault in entry.facts["faults"].items()}
        self.problem = entry.problem and f"decoded images cannot be kept: {entry.problem.partition(': ')[2]}"

    def fetch(self, numbers: Sequence[int]) -> Fetched:
        sound = [number for number in numbers if number not in self.faults]
        faults = {number: self.faults[number] for number in numbers if number in self.faults}
        at = np.searchsorted(self.numbers, sound)
        return Fetched(torch.from_numpy(self.images[at]), torch.from_numpy(self.labels[at]), faults)


def _sum(encoded: Encoded, numbers: NDArray[np.int64]) -> str:
    """SHA-256 of all that decoded rows depend on."""
    reader = encoded.reader
    total = hashlib.sha256(json.dumps([asdict(reader.decoding), reader.classes, reader.title]).encode())
    total.update(numbers.tobytes())
    for columns in encoded.table.select(numbers).iter(AT_ONCE):
        for image, label in zip(columns["image"], columns["label"], strict=True):
            held = b""
            with suppress(OSError, ValueError):  # told when it is decoded
                held = content(image)
            total.update(hashlib.sha256(held).digest() + repr(label).encode())
    return total.hexdigest()


def _decoded(encoded: Encoded, numbers: NDArray[np.int64]) -> Entry:
    images = np.zeros((len(numbers), *encoded.reader.decoding.shape), np.uint8)
    labels = np.full(len(numbers), -1)
    faults: dict[int, str] = {}
    for first in range(0, len(numbers), AT_ONCE):
        some = numbers[first : first + AT_ONCE].tolist()
        found = encoded.fetch(some)
        sound = [first + at for at, number in enumerate(some) if number not in found.faults]
        images[sound], labels[sound] = found.inputs.numpy(), found.labels.numpy()
        faults |= found.faults
    return Entry({"labels": labels.tolist(), "faults": faults}, images.reshape(-1))
