"""The order of samples: a function of (seed, epoch, index) alone, whatever loads them, and resumable within an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from zoo.errors import DataError

Keys = list[tuple[int, int]] | list[int]


@dataclass(frozen=True)
class Share:
    """Which one this is of the `processes` that deal out each batch among themselves."""

    rank: int = 0
    processes: int = 1

    def of(self, batch: Any) -> Any:
        """This one's part of a sequence: parts follow one another, and the first ones are longer by at most one."""
        size, more = divmod(len(batch), self.processes)
        start = self.rank * size + min(self.rank, more)
        return batch[start : start + size + (self.rank < more)]


class ResumableSampler(Sampler[Keys]):
    """One process' part of every batch of `together` samples, which all processes take at once.

    With a `seed`, in training, samples are (epoch, index) in an order drawn from seed and epoch, so that augmentation can be
    seeded by both; samples that go on from one another are not `shuffled`. All parts are equally long, so that the mean of
    their gradients is that of the batch: less than one sample for each process is left out at the end. Else they are
    indices, each once, in batches as long as one another, or all but.

    Lightning sets the epoch, unless it is `held`. The first `skip` samples are left out, once: a resumed run has seen them.
    """

    def __init__(
        self, count: int, together: int, share: Share, seed: int | None, shuffled: bool = True
    ) -> None:
        if not count:
            raise DataError(
                "there is no sample to read: a split of the data, or a share of one, is empty"
            )
        if min(count, together) < share.processes:
            what = f"{count} samples" if count < together else f"a batch of {together}"
            raise DataError(f"{what} cannot be dealt out to {share.processes} processes")
        self.all, self.count = count, count  # samples that there are, and that are dealt out
        self.together, self.share, self.seed, self.shuffled = together, share, seed, shuffled
        if seed is not None:
            self.count -= count % together % share.processes
        self.epoch = self.skip = 0
        self.held = False
        self.sampler = self  # which Lightning tells the epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = 0 if self.held else epoch

    def __len__(self) -> int:
        return len(self._ends())

    def __iter__(self) -> Iterator[Keys]:
        first, self.skip = self.skip, 0
        indices = np.arange(self.all)
        if self.seed is not None and self.shuffled:
            indices = np.random.default_rng([self.seed, self.epoch]).permutation(self.all)
        for end in self._ends():
            if end > first:
                own = [int(index) for index in self.share.of(indices[first:end])]
                yield own if self.seed is None else [(self.epoch, index) for index in own]
                first = end

    def _ends(self) -> list[int]:
        """Where batches end. Those of an evaluation have all processes take part in each, and equally often."""
        if self.seed is not None:
            return [*range(self.together, self.count, self.together), self.count]
        whole = self.count - self.count % self.share.processes
        batches = -(-whole // self.together)
        return [self.count * number // batches for number in range(1, batches + 1)]


class ResumableLoader(DataLoader[Any]):
    """Batches fetched whole, of `batch_size` samples for each process, or of `together` for all of them.

    In `training` in a given order, which a checkpoint can go on from in the middle of an epoch.
    """

    def __init__(
        self,
        samples: Dataset[Any],
        batch_size: int,
        seed: int,
        workers: int,
        share: Share,
        *,
        training: bool = False,
        shuffled: bool = True,
        together: int | None = None,
    ) -> None:
        together = together or batch_size * share.processes
        self.order = ResumableSampler(
            len(samples),  # type: ignore[arg-type]
            together,
            share,
            seed if training else None,
            shuffled,
        )
        super().__init__(
            samples,
            batch_sampler=self.order,
            num_workers=workers,
            collate_fn=_as_fetched,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(
                seed
            ),  # its own: the global random state is left to the model
        )
        self.given = 0  # samples of this epoch, to all processes

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.given = self.order.skip
        for batch in super().__iter__():
            self.given = min(self.given + self.order.together, self.order.count) % self.order.count
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = self.order.skip = state["given"] % self.order.count


def _as_fetched(batch: Any) -> Any:
    return batch
