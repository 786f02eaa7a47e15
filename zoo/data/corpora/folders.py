"""Folders of classes that hold texts, as tables by split. Raises DataError."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.data.corpora.files import read
from zoo.data.tables.opening import is_table
from zoo.errors import DataError

TRAIN = "train"  # the split of what lies in no folder of a split


def opened(path: str, streaming: bool = False) -> Mapping[str, Any] | None:
    """Tables of `SPLIT/CLASS/NAME.txt`, or of `CLASS/NAME.txt`; None where a path is no folder of such."""
    folder = Path(path).expanduser()
    deep, flat = sorted(folder.glob("*/*/*.txt")), sorted(folder.glob("*/*.txt"))
    files = deep or flat
    if not files:
        return None
    tables = [file for pattern in ("*", "*/*") for file in sorted(folder.glob(pattern)) if is_table(file)]
    _refuse_both(path, "texts at SPLIT/CLASS", deep, "at CLASS", flat)
    _refuse_both(path, "texts in class folders", files, "tables", tables)
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(file.relative_to(folder).parts[0] if deep else TRAIN, []).append(file)
    names = sorted({file.parent.name for file in files})
    return {split: _table(found, names, streaming) for split, found in splits.items()}


def _refuse_both(path: str, one: str, ones: Sequence[Path], other: str, others: Sequence[Path]) -> None:
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
