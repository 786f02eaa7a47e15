"""Texts with labels, as rows of tokens of one length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.corpora.files import read
from zoo.data.corpora.tabled import text_of
from zoo.data.corpora.vocabulary import Encoder, from_plain
from zoo.data.given import Given
from zoo.data.tables.rows import Fetched, numbered
from zoo.errors import DataError, Invalid
from zoo.samples import Passages, Samples

PADDING = -1


def padded(rows: Sequence[NDArray[Any]]) -> Tensor:
    """int64 [B, N] of tokens, N those of the longest row."""
    inputs = np.full((len(rows), max(map(len, rows), default=0)), PADDING)
    for at, row in enumerate(rows):
        inputs[at, : len(row)] = row
    return torch.from_numpy(inputs)


@dataclass(frozen=True)
class Reader:
    """Makes passages of the rows of a table, with the columns `text` and `label`; what is longer than `length` is cut.

    A label is one of `names`, or a number, which `order` tells the class of.
    """

    vocabulary: Encoder
    length: int
    order: tuple[int, ...]
    names: tuple[str, ...]
    title: str  # what they are called in messages, with their number

    def fetched(self, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> Fetched:
        inputs, labels, faults = [], [], {}
        for number, row in rows:
            try:
                label = self._label(row["label"])
                inputs.append(tokens(row["text"], self.vocabulary, self.length))
                labels.append(label)
            except ValueError as error:
                faults[number] = f"{self.title}, row {number}: {error}"
        return Fetched(padded(inputs), torch.tensor(labels, dtype=torch.long), faults)

    def _label(self, label: Any) -> int:
        return self.names.index(label) if label in self.names else self.order[numbered(label, len(self.order))]


def tokens(text: Any, vocabulary: Encoder, length: int) -> NDArray[Any]:
    """The first so many tokens of a text. Raises ValueError where there is none, or what has no token."""
    found = vocabulary.numbers(words)[:length] if (words := text_of(text)) else ()
    if not len(found):
        raise ValueError("there is no text")
    return np.asarray(found)


def given(paths: Sequence[Path], samples: Samples, length: int, batch_size: int) -> Iterator[Given]:
    """Batches of files of text, with the vocabulary of `samples`. Raises Invalid where those are no passages."""
    if not isinstance(samples, Passages):
        raise Invalid("name", "the model was not trained on texts with labels")
    vocabulary = from_plain(samples.vocabulary.plain())
    return (_given(paths[at : at + batch_size], vocabulary, length) for at in range(0, len(paths), batch_size))


def _given(paths: Sequence[Path], vocabulary: Encoder, length: int) -> Given:
    found: dict[Path, NDArray[Any]] = {}
    faults: dict[Path, str] = {}
    for path in paths:
        try:
            found[path] = tokens(read([str(path)])[0].text, vocabulary, length)
        except (DataError, ValueError) as error:
            faults[path] = str(error).removeprefix(f"{path}: ")
    return Given(tuple(found), padded([*found.values()]), faults)
