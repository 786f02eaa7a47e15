"""Ways in which a file of a folder that zoo reads may be damaged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def _truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _make_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": _truncate,
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00\x01\n"),
    "another type": lambda path: path.write_text("[3]\n"),
    "nested": lambda path: path.write_text("[" * 100_000),
    "a folder": _make_folder,
    "a FIFO": _make_fifo,
    "a dangling link": _make_dangling_link,
}
"""{name: what it does to a file}"""


def restore(path: Path, content: bytes) -> None:
    """Put a file back, whatever is in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.write_bytes(content)
