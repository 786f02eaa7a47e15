"""Streamed tables: shuffled in a buffer, divided among processes, and resumable."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from zoo.data.sampler import ProcessShare, WorkerStart
from zoo.data.tables.open_table import iterate_rows
from zoo.errors import DataError
from zoo.options import Count

log = logging.getLogger("zoo")

NUM_OPEN_SHARDS = 10


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Options of streams of training samples."""

    samples: Count
    """Number of samples in an epoch."""
    buffer: Count = 10_000
    """Number of rows in the buffer that samples are drawn from."""


def interleave(shards: Iterable[Iterable[Any]], count: int) -> Iterator[Any]:
    """Yield a row of each of `count` shards in turn; the next shard replaces one that ends."""
    waiting = iter(shards)
    open_shards = deque(map(iter, islice(waiting, count)))
    while open_shards:
        rows = open_shards.popleft()
        row = list(islice(rows, 1))
        open_shards.extend([rows] if row else map(iter, islice(waiting, 1)))
        yield from row


def shuffle(rows: Iterable[Any], buffer: int, seed: Sequence[int]) -> Iterator[Any]:
    """Yield rows at random from a buffer that is kept full."""
    rng, held = np.random.default_rng(seed), list[Any]()
    for row in rows:
        held.append(row)
        if len(held) == buffer:
            yield _pop_random(held, rng)
    while held:
        yield _pop_random(held, rng)


def _pop_random(held: list[Any], rng: np.random.Generator) -> Any:
    # Swapping with the last element makes a removal constant in time.
    at = int(rng.integers(len(held)))
    held[at], held[-1] = held[-1], held[at]
    return held.pop()


def shuffle_table(
    table: Any, read: Callable[[Any], Iterator[Any]], seed: int, epoch: int, buffer: int
) -> Iterator[Any]:
    """Yield what `read` yields for each row of the shards of a table.

    The order of shards and rows depends only on (seed, epoch, buffer).
    """
    # The shuffling of `datasets` is not used: its order in a worker differs, and it reads shards in
    # threads, after which it sleeps for five seconds because Arrow may abort if Python ends first.
    count = table.num_shards
    order = np.random.default_rng([seed, epoch, 1]).permutation(count)
    shards = (read(table.shard(count, int(number))) for number in order)
    return shuffle(interleave(shards, NUM_OPEN_SHARDS), buffer, [seed, epoch])


def split_batches(rows: Iterable[Any], size: int, least: int) -> Iterator[list[Any]]:
    """Yield lists of `size` rows; a last one with less than `least` rows joins the one before."""
    rows, held = iter(rows), list[Any]()
    while batch := list(islice(rows, size)):
        if held and len(batch) >= least:
            yield held
            held = []
        held = held + batch
    if len(held) >= least:
        yield held


class StreamedBatches(IterableDataset[Any]):
    """The batches of an epoch of a loader, in the main process or in a worker."""

    def __init__(self, loader: StreamingLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.loader.read_batches()
        except DataError as error:
            # Raised in a worker, its message would contain a traceback.
            yield error


class StreamingLoader:
    """A loader of a streamed table that a checkpoint can resume in the middle of an epoch.

    A resumed run reads earlier rows again, without decoding them. Lightning sets the epoch.

    Args:
        table: A streamed table of `datasets`.
        title: Its name in messages.
        batch_size: Number of samples in a batch of one process.
        workers: Number of worker processes, 0 or 1.
        share: The part of each batch that this process loads.
        seed: Seed of the order.
        stream: Options of a training epoch. None: yield all rows once, in order.
    """

    def __init__(
        self,
        table: Any,
        title: str,
        batch_size: int,
        workers: int,
        share: ProcessShare,
        *,
        seed: int,
        stream: StreamOptions | None,
    ) -> None:
        self.table, self.title, self.workers, self.share = table, title, workers, share
        self.seed, self.stream = seed, stream
        self.global_batch_size = batch_size * share.world_size
        self.samples: int | None = None
        """Number of samples in an epoch over all processes. None: all rows."""
        if stream is not None:
            self.samples = stream.samples - stream.samples % share.world_size
        self.pin_memory = False
        self.prefetch_factor: int | None = None
        """As the options of torch's DataLoader, which the data module sets."""
        self.epoch = 0
        self.fixed_epoch = False
        self.delivered = 0
        """Number of samples that were yielded since an epoch was begun or resumed."""
        self.consumed = self.first = 0
        """Number of samples of this epoch that were yielded, and that the next iteration skips."""
        self._has_warned = False
        self.is_at_end = False
        """Whether the batch that was yielded last is the last one of an epoch."""
        # Lightning looks for both samplers, and sets the epoch of one.
        self.epoch_sampler, self.sampler, self.batch_sampler = self, self, None

    def set_epoch(self, epoch: int) -> None:
        """Select the order of an epoch."""
        self.epoch = 0 if self.fixed_epoch else epoch

    def __len__(self) -> int:
        if self.samples is None:
            raise TypeError("the length of a stream is unknown")
        return -(-self.samples // self.global_batch_size)

    def __iter__(self) -> Iterator[Any]:
        self.begin_epoch()
        # The loader's own generator leaves the global random state to the model.
        loader = DataLoader(
            StreamedBatches(self),
            batch_size=None,
            num_workers=self.workers,
            pin_memory=self.pin_memory,
            prefetch_factor=self.prefetch_factor,
            generator=torch.Generator(),
            worker_init_fn=WorkerStart(),
        )
        items = iter(loader)
        following = next(items, None)
        while (item := following) is not None:
            if isinstance(item, DataError):
                raise item
            count, batch = item
            self.delivered += count
            # a table may have fewer rows than an epoch, which only its end tells
            following = next(items, None)
            self.is_at_end = following is None
            if self.samples:
                end = min(self.consumed + count, self.samples)
                if self.is_at_end and end < self.samples:
                    self._warn_of_early_end(end)
                self.consumed = 0 if self.is_at_end else end
            yield batch

    def _warn_of_early_end(self, end: int) -> None:
        if self.share.rank == 0 and not self._has_warned:
            log.warning(
                "%s: an epoch ends after %d samples, for want of rows; steps were planned for %d",
                *(self.title, end, self.samples),
            )
        self._has_warned = True

    def begin_epoch(self) -> None:
        """Begin an epoch, or resume one after a checkpoint was loaded."""
        self.consumed = self.first
        self.first = self.delivered = 0

    def iterate_rows(self) -> Iterable[Any]:
        """Yield the rows of an epoch."""
        if self.stream is None:
            return self.read_rows(self.table)
        buffer = self.stream.buffer
        return shuffle_table(self.table, self.read_rows, self.seed, self.epoch, buffer)

    def read_rows(self, table: Any) -> Iterator[Any]:
        """Yield the rows of a table, or of a part of it, in their order."""
        return iterate_rows(table, self.title)

    @abstractmethod
    def read_batches(self) -> Iterator[tuple[int, Any]]:
        """Yield the size of each global batch after `consumed` samples, and this process' share."""

    def state_dict(self) -> dict[str, int]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert self.samples is not None
        self.consumed = self.first = state["consumed"] % self.samples
