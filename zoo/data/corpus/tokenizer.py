"""Vocabularies of text: characters, bytes, words, and the subwords of a Hugging Face tokenizer."""

from __future__ import annotations

import json as jsons
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from zoo.data.spec import Vocabulary
from zoo.data.tables.open_table import HUB
from zoo.errors import DataError, OptionError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHOWN = 3  # characters, or words, that a message names
LONGEST = 40  # characters of such a word


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, from a broken command line
        refuse_unknown(text, [error.start], "UTF-8")
        raise


def refuse_unknown(text: str, positions: Iterable[int], known: str) -> None:
    first: dict[str, int] = {}
    for at in positions:
        first.setdefault(text[at], int(at))
    _refuse([f"{symbol!r} at position {at}" for symbol, at in first.items()], known)


def refuse_unknown_words(words: Iterable[str], known: int) -> None:
    _refuse([repr(word[:LONGEST]) for word in dict.fromkeys(words)], f"{known} words")


def _refuse(unknown: Sequence[str], known: str) -> None:
    if unknown:
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        raise OptionError(
            "prompt", f"the vocabulary of {known} has no {', '.join(unknown[:SHOWN])}{more}"
        )


@dataclass(frozen=True)
class Subwords:
    """The tokens of a tokenizer, given as the JSON that the library `tokenizers` writes.

    Special tokens are neither added nor left out, and nothing is truncated or padded, whatever the JSON says.
    """

    json: str
    unit: ClassVar[Literal["token"]] = "token"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self.json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _length(self) -> int:
        return 1 + max(self.tokenizer.get_vocab().values(), default=-1)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def lengths(self) -> NDArray[Any]:
        """Exact where the tokenizer works on bytes; else the length of what a token alone decodes to."""
        lengths = np.zeros(len(self), np.int64)
        added = set(self.tokenizer.get_added_tokens_decoder())
        on_bytes = (jsons.loads(self.json).get("decoder") or {}).get("type") == "ByteLevel"
        for piece, token in self.tokenizer.get_vocab().items():
            alone = piece if token in added else self.decode([token])
            lengths[token] = len(piece) if on_bytes and token not in added else len(alone.encode())
        return lengths

    @cached_property
    def _stranger(self) -> int | None:
        """The token for what is unknown, where there is one."""
        model = jsons.loads(self.json)["model"]
        token = model.get("unk_id", self.tokenizer.token_to_id(model.get("unk_token") or ""))
        return None if token is None else int(token)

    def numbers(self, text: str) -> NDArray[Any]:
        utf8(text)  # the library would crash on what is none
        found = self.tokenizer.encode(text, add_special_tokens=False)
        numbers = np.array(found.ids, np.int64)
        refuse_unknown(text, self._unknown(text, numbers, found.offsets), f"{len(self)} subwords")
        return numbers

    def _unknown(
        self, text: str, numbers: NDArray[Any], offsets: list[tuple[int, int]]
    ) -> NDArray[Any]:
        """Positions that no token covers but the one for the unknown; a tokenizer may leave white space out."""
        spans = np.array(offsets, np.int64).reshape(-1, 2)
        spans = spans if self._stranger is None else spans[numbers != self._stranger]
        steps = np.zeros(len(text) + 1, np.int64)
        np.add.at(steps, spans[:, 0], 1)
        np.add.at(steps, spans[:, 1], -1)
        bare = np.flatnonzero(steps.cumsum()[:-1] == 0)
        return bare[[not text[at].isspace() for at in bare]] if len(bare) else bare

    def encode(self, text: str) -> list[int]:
        return self.numbers(text).tolist()

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def plain(self) -> dict[str, str]:
        return {"kind": "subword", "json": self.json}


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
    """The vocabulary that `plain()` was asked of. Raises OptionError where there is none like it."""
    match dict(plain):
        case {"kind": "character", "symbols": symbols}:
            return Characters(symbols)
        case {"kind": "byte"}:
            return Bytes()
        case {"kind": "word", "words": words}:
            return Words(tuple(words.split()))
        case {"kind": "subword", "json": json}:
            return Subwords(json)
    raise OptionError("vocabulary", f"no vocabulary is of kind {plain.get('kind')!r}")


def _points(text: str) -> NDArray[Any]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


Kind = Literal["character", "byte", "subword"]


@dataclass(frozen=True)
class Tokenisation:
    """What a token is; for subwords the tokenizer to load, a file or `hub:owner/name`, or else the size of one to train, or
    both."""

    kind: Kind = "character"
    tokenizer: str | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        for key, given in (("tokenizer", self.tokenizer), ("vocabulary", self.vocabulary)):
            if self.kind != "subword" and given is not None:
                raise OptionError(
                    key,
                    f"tokens are {self.kind}s, which need no {key}; set tokens to subword or leave it out",
                )
        if self.kind == "subword" and self.tokenizer is None and self.vocabulary is None:
            raise OptionError(
                "vocabulary", "the number of subwords to train is missing; 256 bytes are the least"
            )

    def choose(self, texts: Sequence[str], training: Sequence[str]) -> Encoder:
        """The vocabulary for texts. Raises OptionError where its size is not the one asked for."""
        if self.kind == "byte":
            return Bytes()
        if self.kind == "character":
            return Characters("".join(sorted(set().union(*texts))))
        if self.tokenizer is not None:
            return self._sized(load(self.tokenizer), f"{self.tokenizer} has")
        assert self.vocabulary is not None
        return self._sized(train(training, self.vocabulary), "the training text gives")

    def _sized(self, vocabulary: Subwords, told: str) -> Subwords:
        if self.vocabulary not in (None, len(vocabulary)):
            raise OptionError(
                "vocabulary", f"{self.vocabulary} subwords were asked for, {told} {len(vocabulary)}"
            )
        return vocabulary

    def key(self) -> list[str | int | None]:
        """What a cached encoding depends on, the contents of the tokenizer's file included."""
        loaded = None if self.tokenizer is None else load(self.tokenizer).json
        return [self.kind, loaded, self.vocabulary]


def load(place: str) -> Subwords:
    """The tokenizer of a JSON file, or of `hub:owner/name`. Raises DataError where there is none."""
    from tokenizers import Tokenizer

    if place.startswith(HUB):
        return _fetched(place)
    try:
        return Subwords(
            Tokenizer.from_str(Path(place).expanduser().read_text(encoding="utf-8")).to_str()
        )
    except OSError as error:
        raise DataError(f"{place}: cannot be read: {error.strerror}") from None
    except Exception as error:  # the library raises nothing more precise
        raise DataError(f"{place}: not the JSON of a tokenizer: {error}") from None


def _fetched(place: str) -> Subwords:
    from tokenizers import Tokenizer

    try:
        return Subwords(Tokenizer.from_pretrained(place.removeprefix(HUB)).to_str())
    except Exception as error:  # of the library, or of what it fetches with
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        told = "is its name right, and is there a network? Else name a file tokenizer.json"
        raise DataError(f"{place}: no tokenizer could be fetched: {cause}; {told}") from None


def train(texts: Iterable[str], size: int) -> Subwords:
    """Byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909) over bytes, so that it can encode every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return Subwords(tokenizer.to_str())
