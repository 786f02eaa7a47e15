"""A source of text: what is common to those that differ in where their text is from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from zoo.data.corpora.bigram import bigram_loss
from zoo.data.corpora.given import texts
from zoo.data.corpora.reading import Reading
from zoo.data.corpora.vocabulary import from_plain
from zoo.data.given import Given
from zoo.data.order import Loader
from zoo.data.source import Source
from zoo.errors import Invalid
from zoo.samples import Samples, Text


class Written(Source):
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

    def loader(self, part: str) -> Loader:
        return self.reading.loader(part, self.share)

    def count(self, part: str) -> int:
        return self.reading.count(part)

    def read(self, paths: Sequence[Path], samples: Samples) -> Iterator[Given]:
        if not isinstance(samples, Text):
            raise Invalid("name", "the model was not trained on text")
        return texts(paths, from_plain(samples.vocabulary.plain()), self.reading.cutting)
