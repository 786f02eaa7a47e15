"""The order of samples: a function of (seed, epoch, index) alone, whatever loads them."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np
from torch.utils.data import Sampler


class Order(Sampler[tuple[int, int]]):
    """Yields (epoch, index), so that a worker can seed a sample's augmentation by both. Lightning sets the epoch.

    `start` batches of `batch_size` are left out of the next epoch: those that a resumed run has already seen.
    """

    def __init__(self, samples: Sized, seed: int, batch_size: int) -> None:
        self.samples, self.seed, self.batch_size = samples, seed, batch_size
        self.epoch = 0
        self.start = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        first, self.start = self.start * self.batch_size, 0
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.samples))
        return iter([(self.epoch, int(index)) for index in order[first:]])
