"""What every source of data has beside what Lightning asks of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import lightning as L

from zoo.samples import Samples


class Source(L.LightningDataModule):
    """A source is made cheaply: `samples` needs no `setup`, so that a recipe can be checked. A source of text may read its
    text for it, and raise DataError. `digest` names the contents of data that is not fixed by its options.
    """

    name: str  # the registered one
    samples: Samples
    digest: str | None = None

    @property
    def title(self) -> str:
        """The name of the source and, where there is one, the digest of its text."""
        return self.name if self.digest is None else f"{self.name} {self.digest}"

    @abstractmethod
    def loader(self, part: str) -> Iterable[Any]:
        """Batches of train, val or test, once set up; those of train in the order of training."""

    def train_dataloader(self) -> Iterable[Any]:
        return self.loader("train")

    def val_dataloader(self) -> Iterable[Any]:
        return self.loader("val")

    def test_dataloader(self) -> Iterable[Any]:
        return self.loader("test")

    @abstractmethod
    def count(self, part: str) -> int:
        """The number of samples in train, val or test, once set up."""

    def baselines(self) -> dict[str, float]:
        """test/loss of models that need no training, by name: what a trained one has to be compared to."""
        return {}

    def locate(self) -> None:
        """Raises DataError where what `setup` would read is not there; reads nothing."""
        return

    def adopt(self, samples: Samples) -> None:
        """Yield what a trained model knows: text is encoded with its vocabulary. Raises DataError where it cannot be."""
        return
