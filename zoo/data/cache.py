"""Encoded texts kept on disk, so that they are encoded once and mapped into memory after that.

A file is the SHA-256 of all that follows, a line of JSON, and the tokens. It is written under another name first, so that
none is ever seen half written; one that was damaged later does not match its sum, and is made anew.
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

SUM = 64  # hexadecimal digits
ALIGNED = 64  # bytes, so that the tokens are well placed in memory


@dataclass(frozen=True)
class Entry:
    """Facts, as plain data, and the tokens they are about. `problem` says why they could not be kept."""

    facts: dict[str, Any]
    tokens: NDArray[Any]
    problem: str | None = None


def folder() -> Path:
    """Where encoded texts are kept. Raises RuntimeError where the user has no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "zoo"


def kept(key: str, make: Callable[[], Entry]) -> Entry:
    """The entry of a key: mapped from its file, or made and kept. Where none can be kept it stays in memory."""
    with suppress(OSError, RuntimeError, ValueError):  # none yet, or damaged
        return _load(folder() / f"{key}.tokens")
    made = make()
    try:
        path = folder() / f"{key}.tokens"
        _save(path, made)
        return _load(path)
    except (OSError, RuntimeError, ValueError) as error:
        return replace(made, problem=f"encoded texts cannot be kept for the next time: {error}")


def _load(path: Path) -> Entry:
    """Raises OSError where there is no file, ValueError where it is damaged."""
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hashlib.sha256(memoryview(content)[SUM:]).hexdigest().encode() != content[:SUM]:
        raise ValueError(f"{path} is damaged")
    end = content.find(b"\n") + 1
    header = json.loads(content[SUM:end])
    return Entry(header["facts"], np.frombuffer(content, header["type"], offset=end))


def _save(path: Path, entry: Entry) -> None:
    head = json.dumps({"facts": entry.facts, "type": entry.tokens.dtype.str}).encode()
    head += b" " * (-(SUM + len(head) + 1) % ALIGNED) + b"\n"
    tokens = np.ascontiguousarray(entry.tokens)
    total = hashlib.sha256(head)
    total.update(tokens.data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.writelines([total.hexdigest().encode(), head, tokens.data])
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
