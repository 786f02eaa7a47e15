"""Stream tables: shuffled through a buffer, dealt out to processes, resumable, never held whole."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
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

NUM_OPEN_SHARDS = 10


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How training samples are streamed."""

    samples: Count
    """Samples of an epoch."""
    buffer: Count = 10_000
    """Rows of the buffer that samples are drawn from."""


def interleave(shards: Iterable[Iterable[Any]], count: int) -> Iterator[Any]:
    """Yield a row of each of `count` shards in turn; when one ends, the next takes its position."""
    waiting = iter(shards)
    open_shards = deque(map(iter, islice(waiting, count)))
    while open_shards:
        rows = open_shards.popleft()
        row = list(islice(rows, 1))
        open_shards.extend([rows] if row else map(iter, islice(waiting, 1)))
        yield from row


def shuffle(rows: Iterable[Any], buffer: int, seed: Sequence[int]) -> Iterator[Any]:
    """Yield rows at random out of a buffer that is kept full."""
    rng, held = np.random.default_rng(seed), list[Any]()
    for row in rows:
        held.append(row)
        if len(held) == buffer:
            yield _pop_random(held, rng)
    while held:
        yield _pop_random(held, rng)


def _pop_random(held: list[Any], rng: np.random.Generator) -> Any:
    at = int(rng.integers(len(held)))
    held[at], held[-1] = held[-1], held[at]
    return held.pop()


def shuffle_table(table: Any, title: str, seed: int, epoch: int, buffer: int) -> Iterator[Any]:
    """Yield the rows of a training epoch: shards and rows in an order drawn from (seed, epoch).

    `datasets` does not shuffle here: it would shuffle samples differently in a worker, and shards
    it reads in threads, after which it sleeps for five seconds, as Arrow may abort if Python ends
    before they do.
    """
    count = table.num_shards
    order = np.random.default_rng([seed, epoch, 1]).permutation(count)
    shards = (iterate_rows(table.shard(count, int(number)), title) for number in order)
    return shuffle(interleave(shards, NUM_OPEN_SHARDS), buffer, [seed, epoch])


def split_batches(rows: Iterable[Any], size: int, least: int) -> Iterator[list[Any]]:
    """Yield lists of `size` rows; a last one of less than `least` joins the one before."""
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
            # raised in a worker it would come with a traceback in its message
            yield error


class StreamingLoader:
    """A loader of a streamed table, which a checkpoint can resume in the middle of an epoch.

    A resumed run reads the rows before again, without decoding them. Lightning sets the epoch.

    Args:
        table: A table of `datasets`, streamed.
        title: Its name in messages.
        batch_size: Samples of a batch of one process.
        stream: How a training epoch is streamed; None yields all rows once, in order.
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
        """Samples of an epoch, of all processes; None is as many as there are."""
        if stream is not None:
            self.samples = stream.samples - stream.samples % share.world_size
        self.epoch = 0
        self.fixed_epoch = False
        self.delivered = 0
        """Samples that were yielded since an epoch was begun or resumed."""
        self.consumed = self.first = 0
        """Samples of this epoch that were yielded; the one that the next iteration begins with."""
        # Lightning looks for both samplers, and sets the epoch of one
        self.epoch_sampler, self.sampler, self.batch_sampler = self, self, None

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = 0 if self.fixed_epoch else epoch

    def __len__(self) -> int:
        if self.samples is None:
            raise TypeError("the length of a stream is unknown")
        return -(-self.samples // self.global_batch_size)

    def __iter__(self) -> Iterator[Any]:
        self.begin_epoch()
        # a generator of its own: the global random state is left to the model
        loader = DataLoader(
            StreamedBatches(self),
            batch_size=None,
            num_workers=self.workers,
            generator=torch.Generator(),
            worker_init_fn=WorkerStart(),
        )
        for item in loader:
            if isinstance(item, DataError):
                raise item
            count, batch = item
            self.delivered += count
            if self.samples:
                end = min(self.consumed + self.global_batch_size, self.samples)
                self.consumed = end % self.samples
            yield batch
        # also where there was less than an epoch
        self.consumed = 0

    def begin_epoch(self) -> None:
        """Begin an epoch, or resume one once."""
        self.consumed = self.first
        self.first = self.delivered = 0

    def iterate_rows(self) -> Iterable[Any]:
        """Return the rows of an epoch."""
        if self.stream is None:
            return iterate_rows(self.table, self.title)
        buffer = self.stream.buffer
        return shuffle_table(self.table, self.title, self.seed, self.epoch, buffer)

    @abstractmethod
    def read_batches(self) -> Iterator[tuple[int, Any]]:
        """Yield the size of each global batch from `consumed` on, and this process' share of it."""

    def state_dict(self) -> dict[str, int]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert self.samples is not None
        self.consumed = self.first = state["consumed"] % self.samples
