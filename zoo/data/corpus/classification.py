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

from zoo.data.base import Given
from zoo.data.corpus.corpus import read
from zoo.data.corpus.table import text_of
from zoo.data.corpus.tokenizer import Encoder, from_plain
from zoo.data.spec import Samples, TextClassificationSpec
from zoo.data.tables.dataset import Fetched, numbered
from zoo.data.tables.open_table import is_table
from zoo.errors import DataError, OptionError

TRAIN = "train"  # the split of what lies in no folder of a split


def opened(path: str, streaming: bool = False) -> Mapping[str, Any] | None:
    """Tables of `SPLIT/CLASS/NAME.txt`, or of `CLASS/NAME.txt`; None where a path is no folder of such."""
    folder = Path(path).expanduser()
    deep, flat = sorted(folder.glob("*/*/*.txt")), sorted(folder.glob("*/*.txt"))
    files = deep or flat
    if not files:
        return None
    tables = [
        file for pattern in ("*", "*/*") for file in sorted(folder.glob(pattern)) if is_table(file)
    ]
    _refuse_both(path, "texts at SPLIT/CLASS", deep, "at CLASS", flat)
    _refuse_both(path, "texts in class folders", files, "tables", tables)
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(file.relative_to(folder).parts[0] if deep else TRAIN, []).append(file)
    names = sorted({file.parent.name for file in files})
    return {split: _table(found, names, streaming) for split, found in splits.items()}


def _refuse_both(
    path: str, one: str, ones: Sequence[Path], other: str, others: Sequence[Path]
) -> None:
    if ones and others:
        told = f"both {one}, as {ones[0]}, and {other}, as {others[0]}"
        raise DataError(f"{path}: holds {told}; which are meant? Move the others away")


def _table(files: list[Path], names: list[str], streaming: bool) -> Any:
    from datasets import ClassLabel, Dataset, Features, IterableDataset, Value

    features = Features(text=Value("string"), label=ClassLabel(names=names))
    if not streaming:
        return Dataset.from_list([*_rows(files, names)], features=features)
    given = {"files": tuple(files), "names": tuple(names)}  # each item of a list would be a shard
    return IterableDataset.from_generator(_rows, features=features, gen_kwargs=given)


def _rows(files: Sequence[Path], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for file in files:
        yield {"text": read([str(file)])[0].text, "label": names.index(file.parent.name)}


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
        return (
            self.names.index(label)
            if label in self.names
            else self.order[numbered(label, len(self.order))]
        )


def tokens(text: Any, vocabulary: Encoder, length: int) -> NDArray[Any]:
    """The first so many tokens of a text. Raises ValueError where there is none, or what has no token."""
    found = vocabulary.numbers(words)[:length] if (words := text_of(text)) else ()
    if not len(found):
        raise ValueError("there is no text")
    return np.asarray(found)


def given(paths: Sequence[Path], samples: Samples, length: int, batch_size: int) -> Iterator[Given]:
    """Batches of files of text, with the vocabulary of `samples`. Raises OptionError where those are no passages."""
    if not isinstance(samples, TextClassificationSpec):
        raise OptionError("name", "the model was not trained on texts with labels")
    vocabulary = from_plain(samples.vocabulary.plain())
    return (
        _given(paths[at : at + batch_size], vocabulary, length)
        for at in range(0, len(paths), batch_size)
    )


def _given(paths: Sequence[Path], vocabulary: Encoder, length: int) -> Given:
    found: dict[Path, NDArray[Any]] = {}
    faults: dict[Path, str] = {}
    for path in paths:
        try:
            found[path] = tokens(read([str(path)])[0].text, vocabulary, length)
        except (DataError, ValueError) as error:
            faults[path] = str(error).removeprefix(f"{path}: ")
    return Given(tuple(found), padded([*found.values()]), faults)
