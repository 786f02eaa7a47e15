"""Write files whole or not at all, and seal checkpoints so that any change to them is noticed.

A sealed file is the zip archive that `torch.save` writes, with the checksum of all its bytes as the
archive's comment: one file, which other programs read as they would without it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.errors import CheckpointError, ZooError
from zoo.files import WRITING, write
from zoo.packages import explain_imports

SEAL_NAME = b"zoo sha256 "
SEAL_LENGTH = len(SEAL_NAME) + 64
# a zip archive ends with the length of its comment, two bytes, and the comment
NO_COMMENT = b"\0\0"
METADATA, CHECKSUM = "zoo", "zoo sha256"  # entries of the header of a safetensors file
SEAL_START = SEAL_LENGTH.to_bytes(2, "little") + SEAL_NAME


def serialise(content: Any) -> io.BytesIO:
    """Return plain data and tensors as the bytes of an unsealed file, copied at this moment."""
    file = io.BytesIO()
    torch.save(content, file)
    return file


def write_sealed(file: io.BytesIO, path: Path) -> None:
    """Seal what `serialise` returned and write it. Raises ZooError as `write` does."""
    seal = SEAL_START + hashlib.sha256(file.getbuffer()).hexdigest().encode()
    # the seal replaces the empty comment, so the digest covers everything before it
    file.seek(-len(NO_COMMENT), os.SEEK_END)
    file.write(seal)
    try:
        write(file, path)
    except ZooError as error:
        raise ZooError(f"{error}{_mention_checkpoints(path, path.parent)}") from None


def write_safetensors(
    weights: Mapping[str, Tensor], metadata: Mapping[str, Any], path: Path
) -> None:
    """Write weights as safetensors; the header carries plain data and a checksum of everything.

    Raises:
        PackageError: safetensors is missing.
        ZooError: As `write` raises it.
    """
    with explain_imports():
        from safetensors.torch import save

    plain = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    # other programs look for the format
    content = save(plain, {"format": "pt", METADATA: json.dumps(metadata)})
    header, data = _split_header(content)
    # the library wrote the header without a checksum, which depends on the header: write it again
    header["__metadata__"][CHECKSUM] = _compute_checksum(header, data)
    table = json.dumps(header, separators=(",", ":")).encode()
    table += b" " * (-len(table) % 8)  # tensors are aligned
    file = io.BytesIO(len(table).to_bytes(8, "little") + table)
    file.seek(0, os.SEEK_END)
    file.write(data)
    write(file, path)


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the weights of a file, and the plain data that `write_safetensors` was given.

    Raises:
        CheckpointError: The file cannot be read, is corrupt, or was not written by zoo.
    """
    with explain_imports():
        from safetensors.torch import load

    try:
        content = path.read_bytes()
        weights = load(content)
        header, data = _split_header(content)
        stored = header.get("__metadata__", {})
        metadata = json.loads(stored[METADATA]) if METADATA in stored else None
    except OSError as error:
        raise CheckpointError(f"{path}: unreadable, {error.strerror or error}") from None
    except Exception as error:
        # the library's error class is not public
        raise CheckpointError(f"{path}: corrupt, {str(error)[:120]}") from None
    if metadata is None:
        problem = "not written by zoo, it carries no recipe; zoo convert reads published weights"
        raise CheckpointError(f"{path}: {problem}")
    if stored.get(CHECKSUM) != _compute_checksum(header, data):
        raise CheckpointError(f"{path}: corrupt, its checksum does not match")
    return weights, metadata


def _split_header(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """Split the bytes of a safetensors file into its table and the numbers."""
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), memoryview(content)[start:]


def _compute_checksum(header: Mapping[str, Any], data: memoryview) -> str:
    """Return a checksum of names, shapes, plain data and numbers."""
    stored = {key: value for key, value in header["__metadata__"].items() if key != CHECKSUM}
    described = json.dumps({**header, "__metadata__": stored}, sort_keys=True)
    digest = hashlib.sha256(described.encode())
    digest.update(data)
    return digest.hexdigest()


def copy(path: Path, target: Path) -> None:
    """Copy a sealed file. Raises as `read_sealed` and `write` do."""
    write(read_sealed(path), target)


def read_sealed(path: Path) -> io.BytesIO:
    """Return the bytes of a sealed file.

    Raises:
        CheckpointError: The file cannot be read, or a byte differs from what was written.
    """
    others = _mention_checkpoints(path, path.parent, path)
    try:
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: unreadable, {error.strerror or error}{others}") from None
    cut = max(0, len(content) - len(NO_COMMENT) - SEAL_LENGTH)
    payload, seal = content[:cut], bytes(content[cut:])
    if not seal.startswith(SEAL_START):
        problem = "corrupt, or unsafe and not written by zoo: it does not end with its checksum"
        raise CheckpointError(f"{path}: {problem}; nothing of it was used{others}")
    digest = hashlib.sha256(payload)
    # the file had an empty comment when its digest was taken
    digest.update(NO_COMMENT)
    if seal != SEAL_START + digest.hexdigest().encode():
        raise CheckpointError(f"{path}: corrupt, its checksum does not match{others}")
    return io.BytesIO(content)


def is_intact(path: Path) -> bool:
    """Return whether a sealed file exists and no byte of it has changed."""
    try:
        read_sealed(path)
    except CheckpointError:
        return False
    return True


def describe_checkpoints(folder: Path, exclude: Path | None = None) -> str:
    """List the checkpoints of a folder, for a message about another one."""
    names = sorted(path.name for path in folder.glob("*.ckpt") if path != exclude)
    if names:
        return f"still there: {', '.join(names)} in {folder}"
    return f"no {'other ' if exclude else ''}checkpoint there"


def _mention_checkpoints(path: Path, folder: Path, exclude: Path | None = None) -> str:
    """Return `describe_checkpoints` as the end of a message; nothing where none are missed."""
    text = describe_checkpoints(folder, exclude)
    # for other files, such as replay.pt, a folder without checkpoints is nothing to mention
    return "" if text.startswith("no ") and path.suffix != ".ckpt" else f"; {text}"


def remove_unfinished(run: Path) -> None:
    """Remove the unfinished files of a run that was killed."""
    for folder in (run, run / "checkpoints"):
        for path in folder.glob(f"*{WRITING}"):
            path.unlink(missing_ok=True)
