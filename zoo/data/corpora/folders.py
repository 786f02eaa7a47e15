"""Folders of classes that hold texts, as tables by split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.data.corpora.files import read

TRAIN = "train"  # the split of what lies in no folder of a split


def opened(path: str) -> Mapping[str, Any] | None:
    """Tables of `SPLIT/CLASS/NAME.txt`, or of `CLASS/NAME.txt`; None where a path is no folder of such. Raises DataError."""
    folder = Path(path).expanduser()
    files = sorted(folder.glob("*/*/*.txt")) or sorted(folder.glob("*/*.txt"))
    if not files:
        return None
    splits: dict[str, list[Path]] = {}
    for file in files:
        parts = file.relative_to(folder).parts
        splits.setdefault(parts[0] if len(parts) == 3 else TRAIN, []).append(file)
    names = sorted({file.parent.name for file in files})
    return {split: _table(found, names) for split, found in splits.items()}


def _table(files: list[Path], names: list[str]) -> Any:
    from datasets import ClassLabel, Dataset, Features, Value

    rows = {"text": [read([str(file)])[0].text for file in files], "label": [file.parent.name for file in files]}
    return Dataset.from_dict(rows, Features(text=Value("string"), label=ClassLabel(names=names)))
