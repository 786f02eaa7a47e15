"""Resumable sampling, in which the order of samples depends only on (seed, epoch, index)."""

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
"""The key of a sample: its index, or (epoch, index) in training."""


@dataclass(frozen=True)
class ProcessShare:
    """The part of each batch that one of several processes loads."""

    rank: int = 0
    world_size: int = 1

    def take(self, batch: Any) -> Any:
        """Return this process' slice of a sequence. Slices differ in length by at most one."""
        size, remainder = divmod(len(batch), self.world_size)
        # the first ranks have one sample more
        start = self.rank * size + min(self.rank, remainder)
        return batch[start : start + size + (self.rank < remainder)]


class ResumableSampler(Sampler[list[Key]]):
    """A sampler of one process' share of every global batch, resumable within an epoch.

    In training (with a `seed`) keys are (epoch, index), so that augmentation can be seeded by both.
    All processes have shares of equal size, so that the mean of their gradients is that of the
    global batch; for this, fewer samples than there are processes are left out at the end of an
    epoch. In evaluation keys are indices, each exactly once, in batches of nearly equal size.

    Lightning sets the epoch. The next iteration leaves out the first `skip` samples, which a
    resumed run has already seen.
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
            source = f"{count} samples" if few else f"a batch of {global_batch_size}"
            raise DataError(f"{source} cannot be split among {share.world_size} processes")

        self.total = count
        self.global_batch_size, self.share = global_batch_size, share
        self.seed, self.shuffled = seed, shuffled
        left_out = 0 if seed is None else count % global_batch_size % share.world_size
        self.count = count - left_out
        """Number of samples of an epoch over all processes."""
        self.epoch = self.skip = 0
        self.fixed_epoch = False
        """Repeat epoch 0, for `overfit_batches`."""
        self.is_at_end = False
        """Whether the batch that was yielded last ends an epoch early; here none does."""
        # Lightning sets the epoch of `loader.batch_sampler.sampler`.
        self.sampler = self

    def set_epoch(self, epoch: int) -> None:
        """Select the order of an epoch."""
        self.epoch = 0 if self.fixed_epoch else epoch

    def __len__(self) -> int:
        return len(self._batch_ends())

    def __iter__(self) -> Iterator[list[Key]]:
        start, self.skip = self.skip, 0
        indices = np.arange(self.total)
        if self.seed is not None and self.shuffled:
            # not torch's generator, whose state depends on what the model has drawn
            indices = np.random.default_rng([self.seed, self.epoch]).permutation(self.total)
        # A resumed epoch may start in the middle of a batch, if the batch size has changed.
        for end in self._batch_ends():
            if end > start:
                batch = [int(index) for index in self.share.take(indices[start:end])]
                yield list(batch) if self.seed is None else [(self.epoch, index) for index in batch]
                start = end

    def _batch_ends(self) -> list[int]:
        """Return the end of each batch. In evaluation every process has a part of every batch."""
        if self.seed is not None:
            return [*range(self.global_batch_size, self.count, self.global_batch_size), self.count]
        divisible = self.count - self.count % self.share.world_size
        batches = -(-divisible // self.global_batch_size)
        return [self.count * number // batches for number in range(1, batches + 1)]


class WorkerStart:
    """Initializes a loader worker so that it ends soon after its parent process.

    Without it, torch checks the parent only every five seconds and between two batches.

    Args:
        start: Another function to call with the number of the worker. Lightning seeds it so.
    """

    def __init__(self, start: Callable[[int], object] | None = None) -> None:
        self.start, self.parent = start, os.getpid()

    def __call__(self, number: int) -> None:
        end_after(self.parent)
        if self.start is not None:
            self.start(number)


class ResumableLoader(DataLoader[Any]):
    """A loader that a checkpoint can resume in the middle of an epoch.

    A dataset returns full batches by `__getitems__`.

    Args:
        dataset: The dataset.
        batch_size: Number of samples in a batch of one process.
        seed: Seed of the order.
        workers: Number of worker processes.
        share: The part of each batch that this process loads.
        training: Shuffle by (seed, epoch).
        shuffled: In training, False keeps the order of samples, for windows that continue each
            other. (It is not called `shuffle`, which Lightning would take for its own setting.)
        global_batch_size: Number of samples in a batch over all processes; `batch_size` times their
            number by default.
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
        # The loader's own generator leaves the global random state to the model.
        super().__init__(
            dataset,
            batch_sampler=self.epoch_sampler,
            num_workers=workers,
            collate_fn=keep_batch,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(seed),
        )
        self.consumed = 0
        """Number of samples of this epoch that were yielded, over all processes."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not isinstance(self.worker_init_fn, WorkerStart):
            # Not earlier, because Lightning sets its own function only if a loader has none.
            self.worker_init_fn = WorkerStart(self.worker_init_fn)
        sampler = self.epoch_sampler
        self.consumed = sampler.skip
        for batch in super().__iter__():
            end = min(self.consumed + sampler.global_batch_size, sampler.count)
            # before the batch is used: a checkpoint after its step must not repeat it
            self.consumed = end % sampler.count
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        sampler = self.epoch_sampler
        self.consumed = sampler.skip = state["consumed"] % sampler.count


def keep_batch(batch: Any) -> Any:
    """Return a batch unchanged, because the dataset has collated it."""
    return batch
