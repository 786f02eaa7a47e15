"""Tables of images, opened with Hugging Face's `datasets`, which is imported only then. Raises DataError."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import DataError, Invalid

HUB = "hub:"
REMEDY = "; is its name right, and is there a network? Else download it, and name its folder"
WHERE = ("__url__", "__key__")  # the columns in which webdataset names a shard, and a sample in it
END = bytes(1024)  # of a tar archive: two empty blocks
BUILDERS = {".parquet": "parquet", ".tar": "webdataset", ".arrow": "arrow"}


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a table that hold images and labels."""

    image: str
    label: str


def opened(path: str, streaming: bool = False) -> Mapping[str, Any]:
    """The tables that a path names, by split: a folder of classes, a folder or a glob of parquet files or webdataset
    shards, or `hub:owner/name`."""
    import datasets

    datasets.disable_progress_bars()
    name, files = located(path)
    for shard in _shards(name, files):
        _complete(shard)
    try:
        return datasets.load_dataset(name, data_files=files, streaming=streaming)
    except Exception as error:  # the library fails in many kinds
        cause = str(error.__cause__ or error).strip() or type(error).__name__
        remedy = REMEDY if path.startswith(HUB) else ""
        raise DataError(f"{path}: cannot be read as images: {cause.splitlines()[0][:200]}{remedy}") from None


def split(tables: Mapping[str, Any], name: str, columns: Columns, path: str) -> Any:
    """One table with the columns `image` and `label`, and WHERE it has them; its images are not yet decoded."""
    import datasets

    if name not in tables:
        raise DataError(f"{path}: no split {name}; there are {', '.join(tables)}")
    table = tables[name]
    for column in (columns.image, columns.label):
        if column not in (table.features or {}):
            raise DataError(f"{path}: no column {column} in {name}; there are {', '.join(table.features or {})}")
    table = table.cast_column(
        columns.image, datasets.Image(decode=False)
    )  # first: what comes after decodes in a stream
    table = table.select_columns([columns.image, columns.label, *(word for word in WHERE if word in table.features)])
    given = {columns.image: "image", columns.label: "label"}
    return table.rename_columns({old: new for old, new in given.items() if old != new})


def classes(table: Any) -> tuple[str, ...]:
    """The names of the classes that the labels of a table number. Raises Invalid where they are plain numbers."""
    names = getattr(table.features["label"], "names", None)
    if names is None:
        raise Invalid("classes", "the labels are plain numbers, which do not tell; say how many classes there are")
    return tuple(names)


def located(path: str) -> tuple[str, dict[str, list[str]] | None]:
    """What `datasets` calls it, and its files where they are named one by one. Raises DataError where there is nothing."""
    if path.startswith(HUB):
        return path.removeprefix(HUB), None
    expanded = os.path.abspath(os.path.expanduser(path))
    if os.path.isdir(expanded):
        return expanded, None
    files = [expanded] if os.path.exists(expanded) else sorted(glob.glob(expanded, recursive=True))
    if not files:
        raise DataError(f"{path}: {'no file matches' if glob.has_magic(path) else 'no such file or folder'}")
    kinds = {Path(file).suffix for file in files}
    if len(kinds) > 1 or not kinds <= BUILDERS.keys():
        known = ", ".join(BUILDERS)
        raise DataError(f"{path}: files of {', '.join(sorted(kinds))}; expected one of {known}, or a folder")
    return BUILDERS[kinds.pop()], {"train": files}


def _shards(name: str, files: Mapping[str, list[str]] | None) -> list[Path]:
    """The tar archives among files, or in a folder of that name."""
    if files is None:
        return sorted(Path(name).rglob("*.tar")) if os.path.isdir(name) else []
    return [Path(file) for file in files["train"] if file.endswith(".tar")]


def _complete(shard: Path) -> None:
    """Raises DataError where an archive was cut off: it would be read as if what is missing had never been in it."""
    with shard.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(END)))
        if file.read() != END:
            raise DataError(
                f"{shard}: it was cut off, a tar archive ends with two empty blocks; write or fetch it again"
            )
