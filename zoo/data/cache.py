"""Arrays that are cached on disk, such as encoded text, and mapped into memory.

A file contains the SHA-256 of all that follows, a line of JSON, and the array. It is written under
another name and renamed, so that no file is ever incomplete. A damaged file does not match its
checksum and is computed again.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIGEST_SIZE = 64
"""Number of hexadecimal digits of the checksum."""
ALIGNMENT = 64
"""The array begins at a multiple of this number of bytes."""


@dataclass(frozen=True)
class CacheEntry:
    """An array and its metadata."""

    metadata: dict[str, Any]
    """Plain data."""
    array: NDArray[Any]
    problem: str | None = None
    """Why the entry could not be written to disk."""


def cache_folder() -> Path:
    """Return the folder of cached arrays.

    Raises:
        RuntimeError: The user has no home directory.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "zoo"


def load_or_make(key: str, make: Callable[[], CacheEntry]) -> CacheEntry:
    """Return the entry of a key, mapped from its file; without a file, make and write it.

    An entry that cannot be written stays in memory, with the reason in `problem`.
    """
    # The file is missing, damaged, or from an earlier version.
    with suppress(OSError, RuntimeError, ValueError, KeyError):
        return _load(cache_folder() / f"{key}.tokens")
    entry = make()
    try:
        path = cache_folder() / f"{key}.tokens"
        _save(path, entry)
        return _load(path)
    except (OSError, RuntimeError, ValueError) as error:
        return replace(entry, problem=f"encoded texts cannot be cached: {error}")


def _load(path: Path) -> CacheEntry:
    """Map a file into memory.

    Raises:
        OSError: There is no such file.
        ValueError: The file is damaged.
    """
    if not path.is_file():
        # a FIFO in its place would let the next line wait for ever
        raise FileNotFoundError(path)
    with path.open("rb") as file:
        # pages are shared by all processes and workers that map the file
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    digest = hashlib.sha256(memoryview(content)[DIGEST_SIZE:]).hexdigest().encode()
    if digest != content[:DIGEST_SIZE]:
        raise ValueError(f"{path} is damaged")
    end = content.find(b"\n") + 1
    header = json.loads(content[DIGEST_SIZE:end])
    array = np.frombuffer(content, header["type"], offset=end)
    return CacheEntry(header["metadata"], array)


def _save(path: Path, entry: CacheEntry) -> None:
    # Spaces in the header align the array.
    header = json.dumps({"metadata": entry.metadata, "type": entry.array.dtype.str}).encode()
    header += b" " * (-(DIGEST_SIZE + len(header) + 1) % ALIGNMENT) + b"\n"
    array = np.ascontiguousarray(entry.array)
    digest = hashlib.sha256(header)
    digest.update(array.data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.writelines([digest.hexdigest().encode(), header, array.data])
            file.close()
            # two processes may make the same entry; whichever is last replaces an equal one
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
