"""What the sources of text share: a corpus, cut into windows and loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.data.base import DataModule, Given
from zoo.data.corpus.corpus import PARTS, Corpus, Stream, read
from zoo.data.corpus.tokenizer import Encoder, from_plain
from zoo.data.corpus.windows import Cut, Cutting
from zoo.data.sampler import ResumableLoader, Share
from zoo.data.spec import Samples, TextSpec
from zoo.errors import DataError, OptionError


def texts(paths: Sequence[Path], vocabulary: Encoder, cutting: Cutting) -> Iterator[Given]:
    """Batches of windows, one file after the other; a text shorter than a window is one of its own length."""
    for path in paths:
        try:
            cut = _cut(path, vocabulary, cutting)
        except (DataError, OptionError) as error:
            yield Given((), None, {path: str(error).removeprefix(f"{path}: ")})
            continue
        rows = (
            1 if cutting.streams else cutting.batch_size
        )  # a stream is remembered from window to window
        for first in range(0, len(cut), rows):
            windows = cut.__getitems__(range(first, min(first + rows, len(cut))))
            yield Given((path,), windows, {})


def _cut(path: Path, vocabulary: Encoder, cutting: Cutting) -> Cut:
    (document,) = read([str(path)])
    tokens = vocabulary.numbers(document.text)
    if len(tokens) < 2:
        raise DataError("it has one token, and none to tell after it")
    length = min(cutting.length, len(tokens) - 1)
    stride = None if cutting.stride is None else min(cutting.stride, length)
    cutting = replace(cutting, length=length, stride=stride, batch_size=1)
    places = cutting.places("the file", len(tokens))
    stream = Stream(tokens, np.zeros(1, np.int64))
    return Cut(stream, places, length, documents=cutting.documents, lengths=vocabulary.lengths)


log = logging.getLogger("zoo")

DIGITS = 12  # of the sum that names a corpus


@dataclass
class Reading:
    """How a source of text is read; nothing is, until it is asked for."""

    corpus: Corpus
    cutting: Cutting
    seed: int
    workers: int
    told: bool = False

    def samples(self) -> TextSpec:
        """Raises OptionError where a part is shorter than a window."""
        for part in PARTS:
            self.count(part)
        return TextSpec(self.cutting.length, self.corpus.encoded.vocabulary)

    def digest(self) -> str:
        return self.corpus.sum[:DIGITS]

    def adopt(self, samples: Samples) -> TextSpec:
        if not isinstance(samples, TextSpec):
            raise OptionError("", "the model was not trained on text")
        self.corpus.adopt(from_plain(samples.vocabulary.plain()))
        return self.samples()

    def tell(self) -> None:
        """Say once what slows the next run down."""
        if self.corpus.encoded.problem and not self.told:
            log.info(self.corpus.encoded.problem)
        self.told = True

    def count(self, part: str) -> int:
        return len(self.cutting.places(part, len(self.corpus.encoded.parts[part].tokens)))

    def loader(self, part: str, share: Share) -> ResumableLoader:
        cutting = self.cutting
        together = cutting.rows(part, share.processes) if cutting.streams else None
        return ResumableLoader(
            self._cut(part, share.processes),
            cutting.batch_size,
            self.seed,
            self.workers,
            share,
            training=part == "train",
            shuffled=not cutting.streams,
            together=together,
        )

    def _cut(self, part: str, processes: int) -> Cut:
        stream, lengths = self.corpus.encoded.parts[part], self.corpus.encoded.vocabulary.lengths
        places = self.cutting.places(part, len(stream.tokens), processes)
        seed = self.seed if part == "train" and self.cutting.windows == "random" else None
        return Cut(
            stream,
            places,
            self.cutting.length,
            documents=self.cutting.documents,
            lengths=lengths,
            seed=seed,
        )

    def pairs(self, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Each token of a part that another follows, and the token that does; within documents, if they are told apart."""
        stream = self.corpus.encoded.parts[part]
        left, right = stream.tokens[:-1], stream.tokens[1:]
        if not self.cutting.documents:
            return left, right
        inside = ~stream.begins()[1:]
        return left[inside], right[inside]


def bigram_loss(reading: Reading) -> float:
    """Mean loss in nats per token of test, under p(b | a) = (count(a, b) + 1) / (count(a) + V) counted on train."""
    size = len(reading.corpus.encoded.vocabulary)
    left, right = reading.pairs("train")
    pairs, counts = np.unique(_joined(left, right, size), return_counts=True)
    firsts = np.bincount(left, minlength=size)
    left, right = reading.pairs("test")
    asked = _joined(left, right, size)
    at = np.searchsorted(pairs, asked).clip(max=len(pairs) - 1)
    seen = np.where(pairs[at] == asked, counts[at], 0)
    return float(-np.log((seen + 1) / (firsts[left] + size)).mean())


def _joined(left: NDArray[Any], right: NDArray[Any], size: int) -> NDArray[Any]:
    """One number per pair: a table of all pairs would not fit for large vocabularies."""
    return left.astype(np.int64) * size + right


class Written(DataModule):
    """Yields what its `reading` reads."""

    reading: Reading

    @cached_property
    def samples(self) -> Samples:  # type: ignore[override]
        return self.reading.samples()

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        return self.reading.digest()

    @property
    def windows(self) -> str:  # type: ignore[override]
        return self.reading.cutting.told

    def baselines(self) -> dict[str, float]:
        return {"bigram": bigram_loss(self.reading)}

    def adopt(self, samples: Samples) -> None:
        self.samples = self.reading.adopt(samples)

    def setup(self, stage: str) -> None:
        self.reading.tell()

    def loader(self, part: str) -> ResumableLoader:
        return self.reading.loader(part, self.share)

    def count(self, part: str) -> int:
        return self.reading.count(part)

    def read(self, paths: Sequence[Path], samples: Samples) -> Iterator[Given]:
        if not isinstance(samples, TextSpec):
            raise OptionError("name", "the model was not trained on text")
        return texts(paths, from_plain(samples.vocabulary.plain()), self.reading.cutting)
