"""A corpus of documents, its vocabulary, and the tokens of train, val and test."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zoo.data.cache import CacheEntry, load_or_make
from zoo.data.corpus.tokenizer import CorpusVocabulary, TokenizerOptions, vocabulary_from_dict
from zoo.data.spec import check_fractions
from zoo.errors import DataError, OptionError
from zoo.utils import describe_absence, describe_damage, guard_reading, read_bytes

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Document:
    """The text of a document, and its name in messages."""

    name: str
    text: str


def read_documents(patterns: Sequence[str]) -> list[Document]:
    """Read the files of paths or globs in the order of the patterns, then by name, each once."""
    paths: dict[str, None] = {}
    # A dictionary keeps the order and drops files that several patterns match.
    for pattern in patterns:
        paths |= dict.fromkeys(_list_files(os.path.expanduser(pattern)))
    return [read_document(Path(path)) for path in paths]


def _list_files(pattern: str) -> list[str]:
    # A file may have brackets in its name, so an existing path is never taken for a glob.
    if os.path.lexists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    files = sorted(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))
    if not files:
        raise DataError(f"{pattern}: no file matches")
    return files


def read_document(path: Path) -> Document:
    """Read a UTF-8 file.

    Raises:
        DataError: The file is missing, empty or not UTF-8. The message names it.
    """
    with guard_reading(path, partial(_describe, path)):
        # A byte order mark is not part of the text.
        content = read_bytes(path).decode().removeprefix("\ufeff")
    if not content:
        raise DataError("empty", place=path)
    return Document(str(path), content)


def _describe(path: Path, error: BaseException) -> str:
    """Return why a file could not be read as UTF-8."""
    match error:
        case FileNotFoundError():
            return describe_absence(path, "file")
        case IsADirectoryError():
            return f"a folder, not a file; for all of its texts write {path}/*.txt"
        case UnicodeDecodeError():
            return f"not UTF-8 at byte {error.start}: {error.object[error.start]:#04x}"
    return describe_damage(error)


@dataclass(frozen=True)
class TokenStream:
    """The concatenated tokens of a split."""

    tokens: NDArray[Any]
    """Tokens [T]."""
    starts: NDArray[Any]
    """Index of the first token of each document, ascending from 0."""

    def mark_starts(self) -> NDArray[Any]:
        """Return booleans [T] that are true at the first token of each document."""
        marks = np.zeros(len(self.tokens), bool)
        marks[self.starts] = True
        return marks

    def number_documents(self, indices: NDArray[Any]) -> NDArray[Any]:
        """Return the number of the document at each index."""
        return np.searchsorted(self.starts, indices, side="right") - 1


@dataclass(frozen=True)
class EncodedCorpus:
    """The tokens of a corpus, and their vocabulary."""

    vocabulary: CorpusVocabulary
    splits: dict[str, TokenStream]
    problem: str | None
    """Reason why the tokens could not be cached on disk, if so."""


class Splitter(Protocol):
    """A rule that distributes documents, or parts of them, among train, val and test."""

    def split(self, documents: Sequence[Document]) -> dict[str, list[Document]]: ...

    def cache_key(self) -> list[Any]:
        """Return everything but the documents that the split depends on, after they were read."""
        ...


@dataclass(frozen=True)
class CharacterSplit:
    """A split into train, val and test, in this order, by fractions of characters."""

    val: float
    test: float

    def __post_init__(self) -> None:
        check_fractions(self.val, self.test)

    def split(self, documents: Sequence[Document]) -> dict[str, list[Document]]:
        """Divide documents at the ends of splits."""
        total = sum(len(document.text) for document in documents)
        val, test = round(self.val * total), round(self.test * total)
        bounds = (0, total - val - test, total - test, total)
        return {
            split: _slice_documents(documents, bounds[number], bounds[number + 1])
            for number, split in enumerate(SPLITS)
        }

    def cache_key(self) -> list[Any]:
        return [self.val, self.test]


def _slice_documents(
    documents: Sequence[Document], start_character: int, end_character: int
) -> list[Document]:
    """Return the non-empty parts of documents between two characters of the joined text."""
    parts, start = [], 0
    for document in documents:
        part = document.text[max(start_character - start, 0) : max(end_character - start, 0)]
        if part:
            parts.append(Document(document.name, part))
        start += len(document.text)
    return parts


class Corpus:
    """Documents that are read, split and encoded when they are first needed.

    Args:
        read: Returns the documents, or raises DataError.
        tokenizer: Options of the vocabulary.
        splitter: Distributes the documents among train, val and test.
    """

    def __init__(
        self, read: Callable[[], list[Document]], tokenizer: TokenizerOptions, splitter: Splitter
    ) -> None:
        self._read, self.tokenizer, self.splitter = read, tokenizer, splitter

    @cached_property
    def documents(self) -> list[Document]:
        return self._read()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text in hexadecimal digits."""
        digest = hashlib.sha256()
        for document in self.documents:
            digest.update(document.text.encode())
        return digest.hexdigest()

    @cached_property
    def tokens(self) -> EncodedCorpus:
        """The tokens of the corpus.

        Raises:
            DataError: A document cannot be read or encoded.
            OptionError: The vocabulary does not have the required size.
        """
        return self._load_tokens(self.tokenizer.cache_key(), None)

    def adopt_vocabulary(self, vocabulary: CorpusVocabulary) -> None:
        """Encode with a given vocabulary.

        Raises:
            DataError: The vocabulary lacks characters of the text.
        """
        self.tokens = self._load_tokens(vocabulary.to_dict(), vocabulary)

    def _load_tokens(self, key: object, vocabulary: CorpusVocabulary | None) -> EncodedCorpus:
        """Load tokens from the cache; encode them if they are not there."""

        def encode() -> CacheEntry:
            splits = self.splitter.split(self.documents)
            return _encode(splits, vocabulary or self._build_vocabulary(splits))

        # The name of the cached file depends on everything that tokens depend on.
        # the digest is of the joined text: other documents may join to the same text
        lengths = [len(document.text) for document in self.documents]
        depends = [self.digest, lengths, self.splitter.cache_key(), key]
        name = hashlib.sha256(json.dumps(depends).encode()).hexdigest()
        entry = load_or_make(name, encode)

        # The cached array is the concatenation of all splits: divide it again, without a copy.
        sizes = [entry.metadata["sizes"][split] for split in SPLITS]
        streams = {}
        for split, tokens in zip(SPLITS, np.split(entry.array, np.cumsum(sizes)[:-1]), strict=True):
            streams[split] = TokenStream(tokens, np.array(entry.metadata["starts"][split]))
        return EncodedCorpus(
            vocabulary_from_dict(entry.metadata["vocabulary"]), streams, entry.problem
        )

    def _build_vocabulary(self, splits: dict[str, list[Document]]) -> CorpusVocabulary:
        # Characters are those of all splits, but subwords are trained on train only.
        training = [document.text for document in splits["train"]]
        return self.tokenizer.build_vocabulary(
            [document.text for document in self.documents], training
        )


def _encode(splits: dict[str, list[Document]], vocabulary: CorpusVocabulary) -> CacheEntry:
    # The smallest integer type that fits; the tokens of all splits become one array.
    dtype = np.min_scalar_type(max(len(vocabulary) - 1, 0))
    pieces = [np.array([], dtype)]
    sizes, starts = {}, {}
    for split in SPLITS:
        encoded = [
            _encode_document(document, vocabulary).astype(dtype) for document in splits[split]
        ]
        lengths = [len(piece) for piece in encoded if len(piece)]
        sizes[split] = sum(lengths)
        starts[split] = np.cumsum([0, *lengths])[: len(lengths)].tolist()
        pieces += encoded
    metadata = {"vocabulary": vocabulary.to_dict(), "sizes": sizes, "starts": starts}
    return CacheEntry(metadata, np.concatenate(pieces))


def _encode_document(document: Document, vocabulary: CorpusVocabulary) -> NDArray[Any]:
    try:
        return vocabulary.encode_array(document.text)
    except OptionError as error:
        raise DataError(f"{document.name}: {error}") from None
