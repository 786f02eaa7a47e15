"""Write files so that a crash leaves either the old content or the new."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.errors import ZooError

WRITING = ".writing"  # suffix of an unfinished file


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write plain data as JSON. Raises ZooError as `write` does."""
    write(io.BytesIO((json.dumps(content, indent=2) + "\n").encode()), path)


def write(file: io.BytesIO, path: Path) -> None:
    """Write a file next to `path` and rename it once it is safe on the disk.

    Raises:
        ZooError: It cannot be written; the previous content of `path` is still there.
    """
    unfinished = path.with_name(f".{path.name}{WRITING}")
    try:
        with unfinished.open("wb") as target:
            target.write(file.getbuffer())
            target.flush()
            os.fsync(target.fileno())
        unfinished.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise ZooError(f"{path}: cannot be written, {error.strerror or error}") from None


def _sync_folder(folder: Path) -> None:
    """Flush a folder to the disk; a new name is safe only then."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
