"""A source of data that draws its samples, from its seed alone."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any

from torch.utils.data import Dataset

from zoo.data.base import DataModule
from zoo.data.sampler import ResumableLoader
from zoo.errors import OptionError
from zoo.registry import Between

PARTS = ("train", "val", "test")

Workers = Annotated[int, Between(0)]


class Generated(DataModule):
    """Has as many samples of train, val and test as `sizes` says; `drawn` makes them."""

    def __init__(
        self, seed: int, batch_size: int, sizes: tuple[int, int, int], workers: int
    ) -> None:
        super().__init__()
        self.seed, self.batch_size, self.workers = seed, batch_size, workers
        self.sizes = dict(zip(PARTS, sizes, strict=True))

    @abstractmethod
    def drawn(self, size: int, seed: tuple[int, int]) -> Dataset[Any]:
        """`size` samples, fetched by batches of (epoch, index), or of indices, and drawn from `seed` and those."""

    def loader(self, part: str) -> ResumableLoader:
        samples = self.drawn(self.sizes[part], (self.seed, PARTS.index(part)))
        return ResumableLoader(
            samples, self.batch_size, self.seed, self.workers, self.share, training=part == "train"
        )

    def count(self, part: str) -> int:
        return self.sizes[part]


def ordered(least: int, most: int, key: str) -> None:
    """Raises OptionError for `least` where it is more than the option `key` allows."""
    if least > most:
        raise OptionError(
            "least", f"{least} {key} are more than the {most} of the longest; write {most} or less"
        )
