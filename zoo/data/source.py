"""What every source of data has beside what Lightning asks of it."""

from __future__ import annotations

from abc import abstractmethod

import lightning as L

from zoo.samples import Images


class Source(L.LightningDataModule):
    """A source is made cheaply: `samples` is known before anything is loaded, so that a recipe can be checked."""

    samples: Images

    @abstractmethod
    def count(self, part: str) -> int:
        """The number of samples in train, val or test, once set up."""
