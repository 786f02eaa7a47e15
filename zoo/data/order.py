"""The order of samples: a function of (seed, epoch, index) alone, whatever loads them, and resumable within an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler


class Order(Sampler[tuple[int, int]]):
    """Yields (epoch, index) in an order drawn from seed and epoch; a sample's augmentation can be seeded by both.

    Samples that go on from one another are not `shuffled`: their order is that of their indices, in every epoch.

    Lightning sets the epoch. The first `skip` samples are left out, once: those that a resumed run has already seen.
    """

    def __init__(self, samples: Sized, seed: int, shuffled: bool = True) -> None:
        self.samples, self.seed, self.shuffled = samples, seed, shuffled
        self.epoch = 0
        self.skip = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        first, self.skip = self.skip, 0
        order = np.arange(len(self.samples))
        if self.shuffled:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.samples))
        return iter([(self.epoch, int(index)) for index in order[first:]])


class Loader(DataLoader[Any]):
    """Batches fetched whole; in training in a given order, which a checkpoint can go on from in the middle of an epoch."""

    def __init__(
        self, samples: Dataset[Any], batch_size: int, seed: int, workers: int, *, order: bool = False,
        shuffled: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            samples,
            batch_size,
            sampler=Order(samples, seed, shuffled) if order else None,  # type: ignore[arg-type]
            num_workers=workers,
            collate_fn=_as_fetched,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(seed),  # its own: the global random state is left to the model
        )
        self.given = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            self.given = self.given % len(self) + 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert isinstance(self.sampler, Order)
        assert self.batch_size is not None
        self.given = state["given"] % len(self)
        self.sampler.skip = self.given * self.batch_size


def _as_fetched(batch: Any) -> Any:
    return batch
