"""Files that are there whole or not at all, and that tell any change to them.

A sealed file is what `torch.save` writes, a zip archive, with the checksum of all its bytes as the archive's comment: one
file, which other programs read as they would without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from zoo.errors import CheckpointError, ZooError

WRITING = ".writing"  # how the name of an unfinished file ends
NAMED = b"zoo sha256 "
LENGTH = len(NAMED) + 64
UNSEALED = b"\0\0"  # a zip archive ends with the length of its comment, two bytes, and the comment
SEALED = LENGTH.to_bytes(2, "little") + NAMED


def serialised(content: Any) -> io.BytesIO:
    """Plain data and tensors as the bytes of a file, not yet sealed: what changes afterwards is not in it."""
    file = io.BytesIO()
    torch.save(content, file)
    return file


def publish(file: io.BytesIO, path: Path) -> None:
    """Seal what `serialised` gave and write it: into a file beside `path` until it is safe on the disk.

    Raises ZooError where it cannot be written; what `path` held before is then still there.
    """
    seal = SEALED + hashlib.sha256(file.getbuffer()).hexdigest().encode()
    file.seek(-len(UNSEALED), os.SEEK_END)
    file.write(seal)
    write(file, path)


def copy(path: Path, target: Path) -> None:
    """Have the contents of a sealed file under another name too. Raises as `verified` and `publish` do."""
    write(verified(path), target)


def write(file: io.BytesIO, path: Path) -> None:
    """Write into a file beside `path` until it is safe on the disk. Raises ZooError as `publish` does."""
    fresh = path.with_name(f".{path.name}{WRITING}")
    try:
        with fresh.open("wb") as target:
            target.write(file.getbuffer())
            target.flush()
            os.fsync(target.fileno())
        fresh.replace(path)
        _settle(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise ZooError(
            f"{path}: cannot be written, {error.strerror or error}; {kept(path.parent)}"
        ) from None


def _settle(folder: Path) -> None:
    """A new name is safe once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def verified(path: Path) -> io.BytesIO:
    """The bytes of a sealed file. Raises CheckpointError where a single one is not as it was written."""
    try:
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise CheckpointError(
            f"{path}: unreadable, {error.strerror or error}; {kept(path.parent, path)}"
        ) from None
    cut = max(0, len(content) - len(UNSEALED) - LENGTH)
    payload, seal = content[:cut], bytes(content[cut:])
    digest = hashlib.sha256(payload)
    digest.update(UNSEALED)
    if not seal.startswith(SEALED):
        told = "corrupt, or unsafe and not written by zoo: it does not end with its checksum; nothing of it was used"
        raise CheckpointError(f"{path}: {told}; {kept(path.parent, path)}")
    if seal != SEALED + digest.hexdigest().encode():
        raise CheckpointError(
            f"{path}: corrupt, it is not what its checksum says; {kept(path.parent, path)}"
        )
    return io.BytesIO(content)


def whole(path: Path) -> bool:
    """Whether a sealed file is there and as it was written."""
    try:
        verified(path)
    except CheckpointError:
        return False
    return True


def kept(folder: Path, but: Path | None = None) -> str:
    """Which checkpoints lie in a folder, for a message about another one."""
    names = sorted(path.name for path in folder.glob("*.ckpt") if path != but)
    return (
        f"still there: {', '.join(names)} in {folder}"
        if names
        else "no other checkpoint lies beside it"
    )


def clear(run: Path) -> None:
    """Remove the unfinished files of a run that was killed."""
    for folder in (run, run / "checkpoints"):
        for path in folder.glob(f"*{WRITING}"):
            path.unlink(missing_ok=True)
