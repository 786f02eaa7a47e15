"""A corpus: documents, their vocabulary, and the tokens of train, val and test."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zoo.data.cache import Entry, kept
from zoo.data.corpus.tokenizer import Encoder, Tokenisation, from_plain
from zoo.errors import DataError, OptionError


@dataclass(frozen=True)
class Document:
    """A text and what it is called in messages."""

    name: str
    text: str


def read(patterns: Sequence[str]) -> list[Document]:
    """The files that paths or globs name, each once, in the order of the patterns and then of their names."""
    paths = dict.fromkeys(
        path for pattern in patterns for path in _matching(os.path.expanduser(pattern))
    )
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
        raise DataError(
            f"{path}: a folder, not a file; for all of its texts write {path}/*.txt"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 at byte {error.start}: {content[error.start]:#04x}"
        ) from None
    except ValueError as error:  # a name that no file can have
        raise DataError(f"{str(path)!r}: cannot be read: {error}") from None
    if not text:
        raise DataError(f"{path}: empty")
    return Document(str(path), text)


PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Stream:
    """Tokens [T] one after the other, and where documents begin among them (ascending, the first at 0)."""

    tokens: NDArray[Any]
    starts: NDArray[Any]

    def begins(self) -> NDArray[Any]:
        """Whether a document begins at each token."""
        begins = np.zeros(len(self.tokens), bool)
        begins[self.starts] = True
        return begins

    def documents(self, positions: NDArray[Any]) -> NDArray[Any]:
        """The number of the document at each position."""
        return np.searchsorted(self.starts, positions, side="right") - 1


@dataclass(frozen=True)
class Encoded:
    """A corpus as tokens. `problem` says why they could not be kept on disk."""

    vocabulary: Encoder
    parts: dict[str, Stream]
    problem: str | None


class Split(Protocol):
    """Which documents, or parts of them, are train, val and test."""

    def split(self, documents: Sequence[Document]) -> dict[str, list[Document]]: ...

    def plain(self) -> list[Any]:
        """All that it depends on beside the documents, as plain data, once they were read."""
        ...


@dataclass(frozen=True)
class Shares:
    """The shares of the characters that val and test have; train has those before them."""

    val: float
    test: float

    def __post_init__(self) -> None:
        for key, share in (("val", self.val), ("test", self.test)):
            if not 0 < share < 1 or self.val + self.test >= 1:
                told = f"shares val {self.val} and test {self.test} must be positive and leave something to train on"
                raise OptionError(key, told)

    def split(self, documents: Sequence[Document]) -> dict[str, list[Document]]:
        """Documents cut where a part ends: train, val, test in the order of the text."""
        total = sum(len(document.text) for document in documents)
        val, test = round(self.val * total), round(self.test * total)
        ends = (total - val - test, total - test, total)
        bounds = zip(PARTS, (0, *ends[:-1]), ends, strict=True)
        return {part: _between(documents, first, last) for part, first, last in bounds}

    def plain(self) -> list[Any]:
        return [self.val, self.test]


class Corpus:
    """Documents are read, encoded and split when they are first asked for.

    `read` raises DataError. Raised later: DataError where a document cannot be encoded, OptionError where no vocabulary of the
    size can be made.
    """

    def __init__(
        self, read: Callable[[], list[Document]], tokenisation: Tokenisation, parts: Split
    ) -> None:
        self._read, self.tokenisation, self.parts = read, tokenisation, parts

    @cached_property
    def documents(self) -> list[Document]:
        return self._read()

    @cached_property
    def sum(self) -> str:
        """SHA-256 of the text, as hexadecimal digits."""
        total = hashlib.sha256()
        for document in self.documents:
            total.update(document.text.encode())
        return total.hexdigest()

    @cached_property
    def encoded(self) -> Encoded:
        return self._encoded(self.tokenisation.key(), self._choose)

    def adopt(self, vocabulary: Encoder) -> None:
        """Encode with a vocabulary that is given. Raises DataError where it lacks characters of the text."""
        self.encoded = self._encoded(vocabulary.plain(), lambda parts: vocabulary)

    def _choose(self, parts: dict[str, list[Document]]) -> Encoder:
        training = [document.text for document in parts["train"]]
        return self.tokenisation.choose([document.text for document in self.documents], training)

    def _encoded(
        self, way: object, choose: Callable[[dict[str, list[Document]]], Encoder]
    ) -> Encoded:
        """As kept under all that it depends on: the text, where its documents end, its parts, the way of encoding."""

        def make() -> Entry:
            parts = self.parts.split(self.documents)
            return _entry(parts, choose(parts))

        ends = [len(document.text) for document in self.documents]
        depends = [self.sum, ends, self.parts.plain(), way]
        entry = kept(hashlib.sha256(json.dumps(depends).encode()).hexdigest(), make)
        sizes = [entry.facts["sizes"][part] for part in PARTS]
        tokens = np.split(entry.tokens, np.cumsum(sizes)[:-1])
        parts = {
            p: Stream(t, np.array(entry.facts["starts"][p]))
            for p, t in zip(PARTS, tokens, strict=True)
        }
        return Encoded(from_plain(entry.facts["vocabulary"]), parts, entry.problem)


def _between(documents: Sequence[Document], first: int, last: int) -> list[Document]:
    """What documents have from one character of the whole text to another; none is empty."""
    found, at = [], 0
    for document in documents:
        text = document.text[max(first - at, 0) : max(last - at, 0)]
        found += [Document(document.name, text)] if text else []
        at += len(document.text)
    return found


def _entry(parts: dict[str, list[Document]], vocabulary: Encoder) -> Entry:
    kind = np.min_scalar_type(max(len(vocabulary) - 1, 0))
    pieces = {
        p: [_numbers(document, vocabulary).astype(kind) for document in parts[p]] for p in PARTS
    }
    sizes = {p: [len(piece) for piece in pieces[p] if len(piece)] for p in PARTS}
    facts = {
        "vocabulary": vocabulary.plain(),
        "sizes": {p: sum(sizes[p]) for p in PARTS},
        "starts": {p: np.cumsum([0, *sizes[p]])[: len(sizes[p])].tolist() for p in PARTS},
    }
    return Entry(
        facts, np.concatenate([np.array([], kind), *(piece for p in PARTS for piece in pieces[p])])
    )


def _numbers(document: Document, vocabulary: Encoder) -> NDArray[Any]:
    try:
        return vocabulary.numbers(document.text)
    except OptionError as error:
        raise DataError(f"{document.name}: {error}") from None
