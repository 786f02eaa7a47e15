"""Labelled texts in class folders of .txt files or rows of tables, and their token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.base import FileBatch
from zoo.data.corpus.corpus import read_document
from zoo.data.corpus.tokenizer import CorpusVocabulary, vocabulary_from_dict
from zoo.data.spec import DataSpec, TextClassificationSpec
from zoo.data.tables.labelled_table import RowBatch, read_label
from zoo.data.tables.open_table import check_text, is_table
from zoo.errors import DataError, OptionError
from zoo.packages import explain_imports
from zoo.utils import collect_damage

PADDING = -1


def open_class_folders(path: str, streaming: bool = False) -> Mapping[str, Any] | None:
    """Return tables of `SPLIT/CLASS/NAME.txt` or `CLASS/NAME.txt`; None for other folders.

    Raises:
        DataError: The folder mixes both layouts, or contains tables too.
    """
    folder = Path(path).expanduser()
    deep, flat = sorted(folder.glob("*/*/*.txt")), sorted(folder.glob("*/*.txt"))
    files = deep or flat
    if not files:
        return None
    # Two layouts, or tables next to class folders, would make the choice ambiguous.
    entries = [*sorted(folder.glob("*")), *sorted(folder.glob("*/*"))]
    _refuse_both(path, "texts at SPLIT/CLASS", deep, "at CLASS", flat)
    _refuse_both(path, "texts in class folders", files, "tables", list(filter(is_table, entries)))

    splits: dict[str, list[Path]] = {}
    for file in files:
        name = file.relative_to(folder).parts[0] if deep else "train"
        splits.setdefault(name, []).append(file)
    names = sorted({file.parent.name for file in files})
    return {
        split: _build_table(split_files, names, streaming) for split, split_files in splits.items()
    }


def _refuse_both(
    path: str, kind: str, files: Sequence[Path], other_kind: str, other_files: Sequence[Path]
) -> None:
    if files and other_files:
        message = f"contains both {kind}, as {files[0]}, and {other_kind}, as {other_files[0]}"
        raise DataError(f"{path}: {message}; keep one kind and move the others away")


def _build_table(files: list[Path], names: list[str], streaming: bool) -> Any:
    with explain_imports():
        from datasets import ClassLabel, Dataset, Features, IterableDataset, Value

    features = Features(text=Value("string"), label=ClassLabel(names=names))
    if not streaming:
        return Dataset.from_list([*_read_rows(files, names)], features=features)
    # Tuples, because `datasets` takes each item of a list for a shard.
    arguments = {"files": tuple(files), "names": tuple(names)}
    return IterableDataset.from_generator(_read_rows, features=features, gen_kwargs=arguments)


def _read_rows(files: Sequence[Path], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for file in files:
        yield {"text": read_document(file).text, "label": names.index(file.parent.name)}


def pad_tokens(rows: Sequence[NDArray[Any]]) -> Tensor:
    """Stack rows of tokens to int64 [B, N], padded to the longest."""
    inputs = np.full((len(rows), max(map(len, rows), default=0)), PADDING)
    for number, row in enumerate(rows):
        inputs[number, : len(row)] = row
    return torch.from_numpy(inputs)


@dataclass(frozen=True)
class TextRowReader:
    """A reader of samples from rows with the columns `text` and `label`."""

    vocabulary: CorpusVocabulary
    length: int
    """Largest number of tokens of a document; later ones are dropped."""
    order: tuple[int, ...]
    """The class of each integer label."""
    names: tuple[str, ...]
    """The class names, for labels that are names; empty if labels count the table's classes."""
    title: str
    """The name of the rows in messages."""

    def read_rows(
        self, rows: Sequence[tuple[int, Mapping[str, Any]]], epoch: int | None = None
    ) -> RowBatch:
        """Read numbered rows, the same in every epoch, and collect the errors of corrupt ones."""
        inputs, labels = [], []
        errors: dict[int, str] = {}
        for number, row in rows:
            with collect_damage(errors, number, f"{self.title}, row {number}"):
                label = self.read_label(row["label"])
                inputs.append(encode_text(row["text"], self.vocabulary, self.length))
                labels.append(label)
        return RowBatch(pad_tokens(inputs), torch.tensor(labels, dtype=torch.long), errors)

    def read_label(self, value: Any) -> int:
        """Return the class of a label. Raises ValueError if it has none."""
        return read_label(value, len(self.order), self.names, self.order)


def encode_text(value: Any, vocabulary: CorpusVocabulary, length: int) -> NDArray[Any]:
    """Return the first `length` tokens of the text in a row.

    Raises:
        ValueError: The row has no text.
    """
    content = check_text(value)
    tokens = vocabulary.encode_array(content)[:length] if content else ()
    if not len(tokens):
        raise ValueError("there is no text")
    return np.asarray(tokens)


def read_text_files(
    paths: Sequence[Path], spec: DataSpec, length: int, batch_size: int
) -> Iterator[FileBatch]:
    """Read text files in batches.

    Raises:
        OptionError: The model does not classify text.
    """
    if not isinstance(spec, TextClassificationSpec):
        raise OptionError("name", "the model was not trained on texts with labels")
    vocabulary = vocabulary_from_dict(spec.vocabulary.to_dict())
    starts = range(0, len(paths), batch_size)
    return (_read_batch(paths[at : at + batch_size], vocabulary, length) for at in starts)


def _read_batch(paths: Sequence[Path], vocabulary: CorpusVocabulary, length: int) -> FileBatch:
    rows: dict[Path, NDArray[Any]] = {}
    errors: dict[Path, str] = {}
    for path in paths:
        with collect_damage(errors, path):
            rows[path] = encode_text(read_document(path).text, vocabulary, length)
    return FileBatch(tuple(rows), pad_tokens([*rows.values()]), errors)
