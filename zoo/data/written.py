"""A source of text: what is common to those that differ in where their text is from."""

from __future__ import annotations

from functools import cached_property

from zoo.data.bigram import bigram_loss
from zoo.data.order import Loader
from zoo.data.reading import Reading
from zoo.data.source import Source
from zoo.samples import Samples


class Written(Source):
    """Yields what its `reading` reads."""

    reading: Reading

    @cached_property
    def samples(self) -> Samples:  # type: ignore[override]
        return self.reading.samples()

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        return self.reading.digest()

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
