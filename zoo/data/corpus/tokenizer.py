"""Vocabularies: characters, bytes, words, and the subwords of a Hugging Face tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from zoo.data.spec import Vocabulary
from zoo.data.tables.open_table import HUB
from zoo.errors import DataError, OptionError
from zoo.packages import explain_imports
from zoo.utils import describe_absence, describe_cause, describe_damage, guard_reading, read_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_NAMED = 3
"""Largest number of unknown characters or words that a message names."""
MAX_WORD = 40
"""Number of characters after which such a word is cut."""

MAX_GAP = 16
"""Largest ratio of the highest number of a token to the number of tokens, which tables follow."""

NOT_A_TOKENIZER = "not the JSON of a tokenizer"
NO_TOKENIZER = "this checkpoint stores no tokenizer, only its vocabulary size"


class CorpusVocabulary(Vocabulary, Protocol):
    """A vocabulary that encodes long texts to arrays."""

    @property
    def lengths(self) -> NDArray[Any] | None:
        """Length of each token in bytes of UTF-8; None if all tokens have one unit."""
        ...

    def encode_array(self, text: str) -> NDArray[Any]:
        """Return token ids as an array. Raises the errors of `encode`."""
        ...


@dataclass(frozen=True)
class Characters:
    """A vocabulary with one token for each of `symbols`, in their order."""

    symbols: str
    unit: ClassVar[Literal["character"]] = "character"
    lengths: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.symbols)

    @cached_property
    def _token_of(self) -> NDArray[Any]:
        """The token of each code point; -1 for unknown ones."""
        # a table of all code points encodes a text in one indexing step
        table = np.full(0x110000, -1, np.int32)
        table[_code_points(self.symbols)] = np.arange(len(self.symbols))
        return table

    def encode_array(self, text: str) -> NDArray[Any]:
        tokens: NDArray[Any] = self._token_of[_code_points(text)]
        _refuse_characters(text, np.flatnonzero(tokens < 0), f"{len(self)} characters")
        return tokens

    def encode(self, text: str) -> list[int]:
        return self.encode_array(text).tolist()

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.symbols[token] for token in tokens)

    def to_dict(self) -> dict[str, str]:
        return {"kind": "character", "symbols": self.symbols}


@dataclass(frozen=True)
class Bytes:
    """The vocabulary of 256 bytes. Invalid UTF-8 decodes to the replacement character."""

    unit: ClassVar[Literal["byte"]] = "byte"
    lengths: ClassVar[None] = None

    def __len__(self) -> int:
        return 256

    def encode_array(self, text: str) -> NDArray[Any]:
        return np.frombuffer(_encode_utf8(text), np.uint8)

    def encode(self, text: str) -> list[int]:
        return self.encode_array(text).tolist()

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def to_dict(self) -> dict[str, str]:
        return {"kind": "byte"}


@dataclass(frozen=True)
class Words:
    """A vocabulary with one token for each of `words`, in their order, separated by white space."""

    words: tuple[str, ...]
    unit: ClassVar[Literal["token"]] = "token"
    lengths: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _token_of(self) -> dict[str, int]:
        return {word: token for token, word in enumerate(self.words)}

    def encode_array(self, text: str) -> NDArray[Any]:
        return np.array(self.encode(text), np.int32)

    def encode(self, text: str) -> list[int]:
        symbols = text.split()
        unknown = dict.fromkeys(word for word in symbols if word not in self._token_of)
        _refuse([repr(word[:MAX_WORD]) for word in unknown], f"{len(self)} words")
        return [self._token_of[word] for word in symbols]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(self.words[token] for token in tokens)

    def to_dict(self) -> dict[str, str]:
        return {"kind": "word", "words": " ".join(self.words)}


@dataclass(frozen=True)
class Subwords:
    """The vocabulary of a tokenizer, given as JSON of the library `tokenizers`.

    Special tokens are neither added nor dropped, and nothing is truncated or padded, regardless of
    the JSON.
    """

    json: str
    unit: ClassVar[Literal["token"]] = "token"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = parse_tokenizer(self.json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _size(self) -> int:
        return 1 + max(self.tokenizer.get_vocab().values(), default=-1)

    def __len__(self) -> int:
        return self._size

    @cached_property
    def lengths(self) -> NDArray[Any]:
        """Length of each token in bytes: exact for byte-level tokenizers, else of its decoding."""
        # In byte-level pieces each character stands for one byte.
        lengths = np.zeros(len(self), np.int64)
        added = set(self.tokenizer.get_added_tokens_decoder())
        decoder = json.loads(self.json).get("decoder") or {}
        is_byte_level = decoder.get("type") == "ByteLevel"
        for piece, token in self.tokenizer.get_vocab().items():
            if is_byte_level and token not in added:
                lengths[token] = len(piece)
            else:
                decoded = piece if token in added else self.decode([token])
                lengths[token] = len(decoded.encode())
        return lengths

    @cached_property
    def _unknown_token(self) -> int | None:
        # Unigram models store the id of the unknown token, other models its text.
        model = json.loads(self.json)["model"]
        token = model.get("unk_id", self.tokenizer.token_to_id(model.get("unk_token") or ""))
        return None if token is None else int(token)

    @cached_property
    def _has_all_bytes(self) -> bool:
        """True if tokens are pieces of bytes, of which each is a token: every text is encoded."""
        from tokenizers.pre_tokenizers import ByteLevel

        content = json.loads(self.json)
        steps = content.get("pre_tokenizer") or {}
        kinds = {step.get("type") for step in (steps, *steps.get("pretokenizers", ()))}
        is_whole = "ByteLevel" in kinds and not content.get("normalizer")
        return is_whole and self.tokenizer.get_vocab().keys() >= {*ByteLevel.alphabet()}

    def encode_array(self, text: str) -> NDArray[Any]:
        # The library crashes on strings that cannot be encoded as UTF-8.
        _encode_utf8(text)
        if self._has_all_bytes:
            # computes no offsets, which take a fifth of the time
            (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)
            return np.array(encoding.ids, np.int64)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        tokens = np.array(encoding.ids, np.int64)
        unknown = self._find_unknown(text, tokens, encoding.offsets)
        _refuse_characters(text, unknown, f"{len(self)} subwords")
        return tokens

    def _find_unknown(
        self, document: str, tokens: NDArray[Any], offsets: list[tuple[int, int]]
    ) -> NDArray[Any]:
        """Return positions of characters, except white space, that no known token covers."""
        # Count the spans over each character by a cumulative sum of starts and ends.
        spans = np.array(offsets, np.int64).reshape(-1, 2)
        if self._unknown_token is not None:
            spans = spans[tokens != self._unknown_token]
        steps = np.zeros(len(document) + 1, np.int64)
        np.add.at(steps, spans[:, 0], 1)
        np.add.at(steps, spans[:, 1], -1)
        uncovered = np.flatnonzero(steps.cumsum()[:-1] == 0)
        return np.array([at for at in uncovered if not document[at].isspace()], np.int64)

    def encode(self, text: str) -> list[int]:
        return self.encode_array(text).tolist()

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def to_dict(self) -> dict[str, str]:
        return {"kind": "subword", "json": self.json}


@dataclass(frozen=True)
class TokenCount:
    """The size of a vocabulary that is not available: it builds a model but encodes no text."""

    size: int
    unit: ClassVar[Literal["token"]] = "token"
    lengths: ClassVar[None] = None

    def __len__(self) -> int:
        return self.size

    def encode_array(self, text: str) -> NDArray[Any]:
        raise OptionError("vocabulary", NO_TOKENIZER)

    def encode(self, text: str) -> list[int]:
        return self.encode_array(text).tolist()

    def decode(self, tokens: Sequence[int]) -> str:
        raise OptionError("vocabulary", NO_TOKENIZER)

    def to_dict(self) -> dict[str, str]:
        return {"kind": "count", "size": str(self.size)}


def vocabulary_from_dict(data: Mapping[str, str]) -> CorpusVocabulary:
    """Return the vocabulary whose `to_dict` returned `data`.

    Raises:
        OptionError: The kind is unknown.
    """
    # Checkpoints contain these dictionaries, so their keys must not change.
    match dict(data):
        case {"kind": "character", "symbols": symbols}:
            return Characters(symbols)
        case {"kind": "byte"}:
            return Bytes()
        case {"kind": "word", "words": words}:
            return Words(tuple(words.split()))
        case {"kind": "subword", "json": text}:
            return Subwords(text)
        case {"kind": "count", "size": size}:
            return TokenCount(int(size))
    raise OptionError("vocabulary", f"no kind of vocabulary is called {data.get('kind')!r}")


def _code_points(string: str) -> NDArray[Any]:
    return np.frombuffer(string.encode("utf-32-le", "surrogatepass"), np.uint32)


def _encode_utf8(string: str) -> bytes:
    try:
        return string.encode()
    except UnicodeEncodeError as error:
        # Half of a surrogate pair, from a command line that is not UTF-8.
        _refuse_characters(string, [error.start], "UTF-8")
        raise


def _refuse_characters(string: str, positions: Iterable[int], vocabulary: str) -> None:
    places: dict[str, int] = {}
    for at in positions:
        places.setdefault(string[at], int(at))
    _refuse([f"{symbol!r} at position {at}" for symbol, at in places.items()], vocabulary)


def _refuse(unknown: Sequence[str], vocabulary: str) -> None:
    if unknown:
        more = f" and {len(unknown) - MAX_NAMED} more" if len(unknown) > MAX_NAMED else ""
        named = ", ".join(unknown[:MAX_NAMED])
        raise OptionError("prompt", f"the vocabulary of {vocabulary} has no {named}{more}")


@dataclass(frozen=True)
class TokenizerOptions:
    """The options of a vocabulary."""

    kind: Literal["character", "byte", "subword"] = "character"
    tokenizer: str | None = None
    """The subword tokenizer to load: a file or `hub:owner/name`."""
    vocabulary: int | None = None
    """Size of the vocabulary to train, or expected size of the vocabulary to load."""

    def __post_init__(self) -> None:
        for key, value in (("tokenizer", self.tokenizer), ("vocabulary", self.vocabulary)):
            if self.kind != "subword" and value is not None:
                message = f"tokens are {self.kind}s, which need no {key}"
                raise OptionError(key, f"{message}; set tokens to subword or leave it out")
        if self.kind == "subword" and self.tokenizer is None and self.vocabulary is None:
            message = "missing; set the number of subwords to train, at least 256"
            raise OptionError("vocabulary", message)

    def build_vocabulary(self, texts: Sequence[str], training: Sequence[str]) -> CorpusVocabulary:
        """Return the vocabulary for texts; train it on `training` if none is loaded.

        Raises:
            OptionError: Its size differs from the option `vocabulary`.
        """
        if self.kind == "byte":
            return Bytes()
        if self.kind == "character":
            return Characters("".join(sorted(set().union(*texts))))
        if self.tokenizer is not None:
            subwords, origin = load_tokenizer(self.tokenizer), f"{self.tokenizer} has"
        else:
            assert self.vocabulary is not None
            subwords, origin = train_bpe(training, self.vocabulary), "the training text gives"
        if self.vocabulary not in (None, len(subwords)):
            message = f"expected {self.vocabulary} subwords, {origin} {len(subwords)}"
            raise OptionError("vocabulary", message)
        return subwords

    def cache_key(self) -> list[str | int | None]:
        """Return what a cached encoding depends on, including the contents of the tokenizer."""
        content = None if self.tokenizer is None else load_tokenizer(self.tokenizer).json
        return [self.kind, content, self.vocabulary]


def parse_tokenizer(text: str) -> Tokenizer:
    """Return the tokenizer of JSON of the library `tokenizers`.

    Raises:
        DataError: It is none, or numbers its tokens far beyond their count.
    """
    with explain_imports():
        from tokenizers import Tokenizer

    with guard_reading(describe=lambda error: f"{NOT_A_TOKENIZER}: {describe_cause(error)}"):
        tokenizer = Tokenizer.from_str(text)
        numbers = tokenizer.get_vocab().values()
    if max(numbers, default=0) > MAX_GAP * len(numbers) + 2**16:
        message = f"its {len(numbers):,} tokens are numbered up to {max(numbers):,}"
        raise DataError(f"{NOT_A_TOKENIZER}: {message}")
    return tokenizer


def load_tokenizer(name: str) -> Subwords:
    """Load the tokenizer of a JSON file or of `hub:owner/name`.

    Raises:
        DataError: It cannot be downloaded or read.
    """
    if name.startswith(HUB):
        with explain_imports():
            from tokenizers import Tokenizer

        with guard_reading(name, _describe_download):
            return Subwords(Tokenizer.from_pretrained(name.removeprefix(HUB)).to_str())
    path = Path(name).expanduser()
    with guard_reading(name, partial(_describe_file, path)):
        content = read_bytes(path).decode()
    try:
        return Subwords(parse_tokenizer(content).to_str())
    except DataError as error:
        raise DataError(error.problem, place=name) from None


def _describe_download(error: BaseException) -> str:
    """Return why a tokenizer could not be downloaded, and a remedy."""
    hint = "is its name right, and is there a network? Else name a file tokenizer.json"
    return f"the tokenizer could not be downloaded: {describe_cause(error)}; {hint}"


def _describe_file(path: Path, error: BaseException) -> str:
    """Return why the file of a tokenizer could not be read."""
    if isinstance(error, FileNotFoundError):
        return describe_absence(path, "file")
    if isinstance(error, UnicodeDecodeError):
        return f"{NOT_A_TOKENIZER}: {describe_cause(error)}"
    return describe_damage(error)


def train_bpe(texts: Iterable[str], size: int) -> Subwords:
    """Train byte-level byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909)."""
    with explain_imports():
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return Subwords(tokenizer.to_str())
