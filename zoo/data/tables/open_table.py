"""Tables, opened with Hugging Face's `datasets`, which is imported only then. Raises DataError."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.errors import DataError, OptionError, ZooError

HUB = "hub:"
REMEDY = "; is its name right, and is there a network? Else download it, and name its folder"
NAMELESS = (
    "Config name is missing"  # how the library begins, where a set has several configurations
)
END = bytes(1024)  # of a tar archive: two empty blocks
BUILDERS = {
    ".parquet": "parquet",
    ".tar": "webdataset",
    ".arrow": "arrow",
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
}
PACKED = (".gz", ".zst")  # which may follow the ending that tells
WORDS = ("string", "large_string")  # the kinds of columns of text
EMPTY = (
    "StopIteration",
    "corresponds to no data",
    "the first 0 values",
)  # as the library tells of files without a row


def opened(path: str, streaming: bool = False) -> Mapping[str, Any]:
    """The tables that a path names, by split: a folder, a file or a glob of files, or a set of the Hub, `hub:owner/name` or
    `hub:owner/name:configuration`. A folder may hold class folders of images, or files of one of the kinds of BUILDERS."""
    import datasets

    datasets.disable_progress_bars()
    _silence()
    name, files = located(path)
    name, configuration = _configured(name) if path.startswith(HUB) else (name, None)
    for shard in _shards(name, files):
        _complete(shard)
    try:
        return datasets.load_dataset(name, configuration, data_files=files, streaming=streaming)
    except Exception as error:  # the library fails in many kinds
        raise DataError(f"{path}: {_told(path, error)}") from None


def rows(table: Iterable[Any], title: str) -> Iterator[Any]:
    """The rows of a table. Raises DataError, which begins with `title`, where the library cannot go on."""
    try:
        yield from table
    except ZooError:
        raise
    except Exception as error:  # it fails in as many kinds as there are files
        raise DataError(f"{title}: {_told(title, error)}") from None


def _silence() -> None:
    """Files that cannot be read are told of by DataError alone."""
    for kind in BUILDERS.values():
        logging.getLogger(f"datasets.packaged_modules.{kind}.{kind}").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Failed to ")


def _told(path: str, error: Exception) -> str:
    """What is wrong with a path that the library could not read, and what would be right."""
    cause = str(error.__cause__ or error).strip() or type(error).__name__
    if NAMELESS in cause:
        named = " ".join(cause.splitlines()[1:2])[:200]
        return f"has several configurations, name one as {path}:CONFIGURATION; {named}"
    if any(word in cause for word in EMPTY):
        return "is empty, or one of its files is"
    return f"cannot be read: {cause.splitlines()[0][:200]}{REMEDY if path.startswith(HUB) else ''}"


def split(tables: Mapping[str, Any], name: str, columns: Iterable[str], path: str) -> Any:
    """The table of a split that has these columns, and maybe others."""
    if name not in tables:
        raise DataError(f"{path}: no split {name}; there are {', '.join(tables)}")
    table = tables[name]
    known = table.features or _features(table, path)
    if not known:
        raise DataError(f"{path}: {name} is empty")
    for column in columns:
        if column not in known:
            raise DataError(f"{path}: no column {column} in {name}; there are {', '.join(known)}")
    return table


def _features(table: Any, path: str) -> Mapping[str, Any]:
    """The columns of a stream that does not tell them, as its first row has them."""
    return next(rows(table, path), {})


def classes(table: Any, column: str = "label") -> tuple[str, ...]:
    """The names of the classes that the labels of a table number. Raises OptionError where they are plain numbers."""
    names = getattr((table.features or {}).get(column), "names", None)
    if names is None:
        raise OptionError(
            "classes",
            "the labels are plain numbers, which do not tell; say how many classes there are",
        )
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
        raise DataError(
            f"{path}: {'no file matches' if glob.has_magic(path) else 'no such file or folder'}"
        )
    kinds = {_kind(file) for file in files}
    if len(kinds) > 1 or not kinds <= BUILDERS.keys():
        known = ", ".join(BUILDERS)
        raise DataError(
            f"{path}: files of {', '.join(sorted(kinds))}; expected one of {known}, or a folder"
        )
    return BUILDERS[kinds.pop()], {"train": files}


def is_table(path: Path) -> bool:
    """Whether a path is a file of one of the kinds of BUILDERS."""
    return _kind(str(path)) in BUILDERS and path.is_file()


def _kind(file: str) -> str:
    path = Path(file)
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def _configured(name: str) -> tuple[str, str | None]:
    """The name of a set of the Hub, and of its configuration where one is named after a colon."""
    owned, _, configuration = name.partition(":")
    return owned, configuration or None


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


PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Parts:
    """The split that each part is; a number instead is a share of the training split, drawn from the seed."""

    train: str
    val: float | str
    test: float | str

    def __post_init__(self) -> None:
        for key in ("val", "test"):
            share = getattr(self, key)
            if not isinstance(share, str) and (share <= 0 or sum(self._shares().values()) >= 1):
                raise OptionError(
                    key, f"shares of {self.train} must be positive and leave something to train on"
                )
        if self.train in (self.val, self.test):
            raise OptionError("train", f"{self.train} would be both trained and measured on")

    @property
    def drawn(self) -> bool:
        """Whether a part depends on the seed."""
        return bool(self._shares())

    def streamed(self, streaming: bool, workers: int) -> None:
        """Raises OptionError where a stream cannot have such parts, or so many workers."""
        if streaming and self.drawn:
            raise OptionError(
                "stream", "a stream has no shares; name a split for each of val and test"
            )
        if streaming and workers > 1:
            told = (
                "several would read a stream in an order that depends on their number; set it to 1"
            )
            raise OptionError("workers", told)

    def split(self, part: str) -> str:
        """The name of the split that a part is taken from."""
        named = getattr(self, part)
        return named if isinstance(named, str) else self.train

    def numbers(self, part: str, count: int, seed: int) -> NDArray[np.int64]:
        """The numbers of a part's samples among the `count` of its split, ascending."""
        shares = self._shares()
        if isinstance(getattr(self, part), str) and (part != "train" or not shares):
            return np.arange(count)
        sizes = [round(share * count) for share in shares.values()]
        pieces = np.split(np.random.default_rng(seed).permutation(count), np.cumsum(sizes))
        return np.sort(dict(zip((*shares, "train"), pieces, strict=True))[part])

    def _shares(self) -> dict[str, float]:
        return {
            key: share
            for key in ("val", "test")
            if not isinstance(share := getattr(self, key), str)
        }
