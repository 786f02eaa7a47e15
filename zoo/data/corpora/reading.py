"""What the sources of text share: a corpus, cut into windows and loaded."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from zoo.data.corpora.corpus import PARTS, Corpus
from zoo.data.corpora.vocabulary import from_plain
from zoo.data.corpora.windows import Cut, Cutting
from zoo.data.order import Loader, Share
from zoo.errors import Invalid
from zoo.samples import Samples, Text

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

    def samples(self) -> Text:
        """Raises Invalid where a part is shorter than a window."""
        for part in PARTS:
            self.count(part)
        return Text(self.cutting.length, self.corpus.encoded.vocabulary)

    def digest(self) -> str:
        return self.corpus.sum[:DIGITS]

    def adopt(self, samples: Samples) -> Text:
        if not isinstance(samples, Text):
            raise Invalid("", "the model was not trained on text")
        self.corpus.adopt(from_plain(samples.vocabulary.plain()))
        return self.samples()

    def tell(self) -> None:
        """Say once what slows the next run down."""
        if self.corpus.encoded.problem and not self.told:
            log.info(self.corpus.encoded.problem)
        self.told = True

    def count(self, part: str) -> int:
        return len(self.cutting.places(part, len(self.corpus.encoded.parts[part].tokens)))

    def loader(self, part: str, share: Share) -> Loader:
        cutting = self.cutting
        together = cutting.rows(part, share.processes) if cutting.streams else None
        return Loader(self._cut(part, share.processes), cutting.batch_size, self.seed, self.workers, share,
                      training=part == "train", shuffled=not cutting.streams, together=together)  # fmt: skip

    def _cut(self, part: str, processes: int) -> Cut:
        stream, lengths = self.corpus.encoded.parts[part], self.corpus.encoded.vocabulary.lengths
        places = self.cutting.places(part, len(stream.tokens), processes)
        seed = self.seed if part == "train" and self.cutting.windows == "random" else None
        return Cut(stream, places, self.cutting.length, documents=self.cutting.documents, lengths=lengths, seed=seed)

    def pairs(self, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Each token of a part that another follows, and the token that does; within documents, if they are told apart."""
        stream = self.corpus.encoded.parts[part]
        left, right = stream.tokens[:-1], stream.tokens[1:]
        if not self.cutting.documents:
            return left, right
        inside = ~stream.begins()[1:]
        return left[inside], right[inside]
