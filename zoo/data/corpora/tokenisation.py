"""How a text becomes tokens: as the options of a source say, or as a byte-level BPE trained on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zoo.data.corpora.subwords import Subwords
from zoo.data.corpora.vocabulary import Bytes, Characters, Encoder
from zoo.data.tables.opening import HUB
from zoo.errors import DataError, Invalid

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
                raise Invalid(
                    key, f"tokens are {self.kind}s, which need no {key}; set tokens to subword or leave it out"
                )
        if self.kind == "subword" and self.tokenizer is None and self.vocabulary is None:
            raise Invalid("vocabulary", "the number of subwords to train is missing; 256 bytes are the least")

    def choose(self, texts: Sequence[str], training: Sequence[str]) -> Encoder:
        """The vocabulary for texts. Raises Invalid where its size is not the one asked for."""
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
            raise Invalid("vocabulary", f"{self.vocabulary} subwords were asked for, {told} {len(vocabulary)}")
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
        return Subwords(Tokenizer.from_str(Path(place).expanduser().read_text(encoding="utf-8")).to_str())
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
