"""Files and folders of the command line, as the files that a model can be asked about."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from zoo.errors import DataError

TEXTS = (".txt",)


class Found(NamedTuple):
    """Files, each once, and what is wrong with the folders that could not be looked into."""

    paths: list[Path]
    faults: dict[Path, str]


def parted(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Paths and overrides: what has a `=` or begins with `~`, and is no path that exists, is an override."""
    overrides = [word for word in words if ("=" in word or word.startswith("~")) and not os.path.lexists(word)]
    return [Path(word) for word in words if word not in overrides], overrides


def images() -> frozenset[str]:
    """The suffixes of images that can be read."""
    from PIL import Image

    Image.init()
    return frozenset(suffix for suffix, kind in Image.EXTENSION.items() if kind in Image.OPEN)


def found(places: Iterable[Path], suffixes: Iterable[str]) -> Found:
    """Files as they are named, and those of folders with one of `suffixes`, sorted. Raises DataError where there is none.

    Names that begin with a dot are left out of folders.
    """
    known, faults = frozenset(suffixes), dict[Path, str]()
    paths = dict.fromkeys(path for place in places for path in _files(place, known, faults))
    return Found([*paths], faults)


def _files(place: Path, suffixes: frozenset[str], faults: dict[Path, str]) -> Iterator[Path]:
    if not place.exists():
        raise DataError(f"{place}: no such file or folder")
    if not place.is_dir():
        yield place
        return
    below, unseen = [*_below(place, suffixes, faults)], len(faults)
    if not below and not unseen:
        kinds = ", ".join(sorted(suffixes)) if len(suffixes) < 5 else "that of an image"
        raise DataError(f"{place}: there is no file to read in it; its name must end with {kinds}")
    yield from below


def _below(folder: Path, suffixes: frozenset[str], faults: dict[Path, str]) -> Iterator[Path]:
    def note(error: OSError) -> None:
        faults[Path(error.filename)] = error.strerror or str(error)

    for place, folders, names in os.walk(folder, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            if not name.startswith(".") and path.suffix.lower() in suffixes and path.is_file():
                yield path
