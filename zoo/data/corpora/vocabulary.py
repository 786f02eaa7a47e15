"""Vocabularies of text: characters, bytes, words, and the subwords of a Hugging Face tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from zoo.data.corpora.subwords import Subwords
from zoo.data.corpora.unknown import refuse_unknown, refuse_unknown_words, utf8
from zoo.errors import Invalid
from zoo.samples import Vocabulary


class Encoder(Vocabulary, Protocol):
    """A vocabulary that a corpus is encoded with."""

    def numbers(self, text: str) -> NDArray[Any]:
        """`encode` as an array, for long texts."""
        ...

    @property
    def lengths(self) -> NDArray[Any] | None:
        """Length in UTF-8 of each token of the vocabulary, where a token is no fixed unit."""
        ...


@dataclass(frozen=True)
class Characters:
    """One token for each of `symbols`, in their order."""

    symbols: str
    unit: ClassVar[Literal["character"]] = "character"
    lengths: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.symbols)

    @cached_property
    def _table(self) -> NDArray[Any]:
        """The token of each code point, -1 for none."""
        table = np.full(0x110000, -1, np.int32)
        table[_points(self.symbols)] = np.arange(len(self.symbols))
        return table

    def numbers(self, text: str) -> NDArray[Any]:
        found = self._table[_points(text)]
        refuse_unknown(text, np.flatnonzero(found < 0), f"{len(self)} characters")
        return found

    def encode(self, text: str) -> list[int]:
        return self.numbers(text).tolist()

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.symbols[token] for token in tokens)

    def plain(self) -> dict[str, str]:
        return {"kind": "character", "symbols": self.symbols}


@dataclass(frozen=True)
class Bytes:
    """The 256 bytes of UTF-8; bytes that are no character decode to the replacement character."""

    unit: ClassVar[Literal["byte"]] = "byte"
    lengths: ClassVar[None] = None

    def __len__(self) -> int:
        return 256

    def numbers(self, text: str) -> NDArray[Any]:
        return np.frombuffer(utf8(text), np.uint8)

    def encode(self, text: str) -> list[int]:
        return self.numbers(text).tolist()

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def plain(self) -> dict[str, str]:
        return {"kind": "byte"}


@dataclass(frozen=True)
class Words:
    """One token for each of `words`, in their order; text has white space between them."""

    words: tuple[str, ...]
    unit: ClassVar[Literal["token"]] = "token"
    lengths: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _table(self) -> dict[str, int]:
        return {word: token for token, word in enumerate(self.words)}

    def numbers(self, text: str) -> NDArray[Any]:
        return np.array(self.encode(text), np.int32)

    def encode(self, text: str) -> list[int]:
        words = text.split()
        refuse_unknown_words([word for word in words if word not in self._table], len(self))
        return [self._table[word] for word in words]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(self.words[token] for token in tokens)

    def plain(self) -> dict[str, str]:
        return {"kind": "word", "words": " ".join(self.words)}


def from_plain(plain: Mapping[str, str]) -> Encoder:
    """The vocabulary that `plain()` was asked of. Raises Invalid where there is none like it."""
    match dict(plain):
        case {"kind": "character", "symbols": symbols}:
            return Characters(symbols)
        case {"kind": "byte"}:
            return Bytes()
        case {"kind": "word", "words": words}:
            return Words(tuple(words.split()))
        case {"kind": "subword", "json": json}:
            return Subwords(json)
    raise Invalid("vocabulary", f"no vocabulary is of kind {plain.get('kind')!r}")


def _points(text: str) -> NDArray[Any]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
