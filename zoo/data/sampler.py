"""Resumable sampling: the order of samples is a function of (seed, epoch, index) alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from zoo.errors import DataError
from zoo.utils import end_after

Key = int | tuple[int, int]
"""What a dataset is indexed by: a sample index, or (epoch, index) in training."""


@dataclass(frozen=True)
class ProcessShare:
    """The share of each batch that one of several processes takes."""

    rank: int = 0
    world_size: int = 1

    def take(self, batch: Any) -> Any:
        """Return this process' slice of a sequence; the first slices are longer by at most one."""
        size, rest = divmod(len(batch), self.world_size)
        start = self.rank * size + min(self.rank, rest)
        return batch[start : start + size + (self.rank < rest)]


class ResumableSampler(Sampler[list[Key]]):
    """One process' share of every global batch, resumable within an epoch.

    In training (with a `seed`) samples are (epoch, index), so that augmentation can be seeded by
    both. All shares are of one length, so that the mean of the processes' gradients is that of the
    global batch: less than one sample for each process is left out at the end of an epoch. In
    evaluation samples are indices, each exactly once, in batches of nearly one length.

    Lightning sets the epoch. `skip` samples are left out once, those that a resumed run has seen.
    """

    def __init__(
        self,
        count: int,
        global_batch_size: int,
        share: ProcessShare,
        seed: int | None,
        shuffled: bool = True,
    ) -> None:
        if not count:
            raise DataError("no samples: a split of the data, or a fraction of one, is empty")
        if min(count, global_batch_size) < share.world_size:
            few = count < global_batch_size
            what = f"{count} samples" if few else f"a batch of {global_batch_size}"
            raise DataError(f"{what} cannot be split among {share.world_size} processes")

        self.total = count
        self.global_batch_size, self.share = global_batch_size, share
        self.seed, self.shuffled = seed, shuffled
        left_out = 0 if seed is None else count % global_batch_size % share.world_size
        self.count = count - left_out
        """Samples of an epoch, of all processes."""
        self.epoch = self.skip = 0
        self.fixed_epoch = False
        """Repeat epoch 0, for `overfit_batches`."""
        # Lightning sets the epoch of `loader.batch_sampler.sampler`
        self.sampler = self

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = 0 if self.fixed_epoch else epoch

    def __len__(self) -> int:
        return len(self._batch_ends())

    def __iter__(self) -> Iterator[list[Key]]:
        first, self.skip = self.skip, 0
        indices = np.arange(self.total)
        if self.seed is not None and self.shuffled:
            indices = np.random.default_rng([self.seed, self.epoch]).permutation(self.total)
        for end in self._batch_ends():
            if end > first:
                own = [int(index) for index in self.share.take(indices[first:end])]
                yield list(own) if self.seed is None else [(self.epoch, index) for index in own]
                first = end

    def _batch_ends(self) -> list[int]:
        """Return where batches end; in evaluation every process has a part of every batch."""
        if self.seed is not None:
            return [*range(self.global_batch_size, self.count, self.global_batch_size), self.count]
        divisible = self.count - self.count % self.share.world_size
        batches = -(-divisible // self.global_batch_size)
        return [self.count * number // batches for number in range(1, batches + 1)]


class WorkerStart:
    """Starts a worker of a loader, which ends soon after the process that has created this.

    torch alone looks for it every five seconds, and between two batches.

    Args:
        start: What else is done with the number of the worker, as Lightning seeds it.
    """

    def __init__(self, start: Callable[[int], object] | None = None) -> None:
        self.start, self.parent = start, os.getpid()

    def __call__(self, number: int) -> None:
        end_after(self.parent)
        if self.start is not None:
            self.start(number)


class ResumableLoader(DataLoader[Any]):
    """A loader that a checkpoint can resume in the middle of an epoch.

    Batches are fetched whole, by `dataset.__getitems__`.

    Args:
        batch_size: Samples of a batch of one process.
        training: Shuffle by (seed, epoch).
        shuffled: False in training keeps the samples in order, as windows that continue each other.
            (Not `shuffle`: Lightning would take the name for a setting of its own.)
        global_batch_size: Samples of a batch of all processes; by default `batch_size` for each.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        seed: int,
        workers: int,
        share: ProcessShare,
        *,
        training: bool = False,
        shuffled: bool = True,
        global_batch_size: int | None = None,
    ) -> None:
        global_batch_size = global_batch_size or batch_size * share.world_size
        count: int = len(dataset)  # type: ignore[arg-type]
        sampler_seed = seed if training else None
        self.epoch_sampler = ResumableSampler(
            count, global_batch_size, share, sampler_seed, shuffled
        )
        # its own generator: the global random state is left to the model
        super().__init__(
            dataset,
            batch_sampler=self.epoch_sampler,
            num_workers=workers,
            collate_fn=keep_batch,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(seed),
        )
        self.consumed = 0
        """Samples of this epoch that were yielded, in all processes together."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not isinstance(self.worker_init_fn, WorkerStart):
            # only now, since Lightning gives its own to loaders that have none
            self.worker_init_fn = WorkerStart(self.worker_init_fn)
        sampler = self.epoch_sampler
        self.consumed = sampler.skip
        for batch in super().__iter__():
            end = min(self.consumed + sampler.global_batch_size, sampler.count)
            self.consumed = end % sampler.count
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        sampler = self.epoch_sampler
        self.consumed = sampler.skip = state["consumed"] % sampler.count


def keep_batch(batch: Any) -> Any:
    """Return a batch that a dataset has collated already."""
    return batch
