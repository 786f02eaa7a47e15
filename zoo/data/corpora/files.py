"""Texts read from files. Raises DataError, which names the file."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import DataError


@dataclass(frozen=True)
class Document:
    """A text and what it is called in messages."""

    name: str
    text: str


def read(patterns: Sequence[str]) -> list[Document]:
    """The files that paths or globs name, each once, in the order of the patterns and then of their names."""
    paths = dict.fromkeys(path for pattern in patterns for path in _matching(os.path.expanduser(pattern)))
    return [_document(Path(path)) for path in paths]


def _matching(pattern: str) -> list[str]:
    if os.path.lexists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    found = sorted(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))
    if not found:
        raise DataError(f"{pattern}: no file matches")
    return found


def _document(path: Path) -> Document:
    try:
        content = path.read_bytes()
        text = content.decode()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: a folder, not a file; for all of its texts write {path}/*.txt") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}: {content[error.start]:#04x}") from None
    except ValueError as error:  # a name that no file can have
        raise DataError(f"{str(path)!r}: cannot be read: {error}") from None
    if not text:
        raise DataError(f"{path}: empty")
    return Document(str(path), text)
