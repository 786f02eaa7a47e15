"""Images streamed from wherever they are, never held whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from zoo.data.corrupt import Corrupt
from zoo.data.pictures import Fetched, Reader
from zoo.registry import Between

Count = Annotated[int, Between(1)]

SHARDS = 10  # read by turns


@dataclass(frozen=True, kw_only=True)
class Stream:
    """How training images are streamed: so many `samples` are an epoch, drawn out of a `buffer` of so many."""

    samples: Count
    buffer: Count = 10_000


def by_turns(shards: Iterable[Iterable[Any]], count: int) -> Iterator[Any]:
    """A row of each of `count` shards in turn; where one ends, the next that waits takes its place."""
    waiting = iter(shards)
    read = deque(map(iter, islice(waiting, count)))
    while read:
        rows = read.popleft()
        found = list(islice(rows, 1))
        read.extend([rows] if found else map(iter, islice(waiting, 1)))
        yield from found


def shuffled(rows: Iterable[Any], buffer: int, seed: Sequence[int]) -> Iterator[Any]:
    """Rows out of a buffer that is kept full, drawn from a seed."""
    generator, held = np.random.default_rng(seed), list[Any]()
    for row in rows:
        held.append(row)
        if len(held) == buffer:
            yield _drawn(held, generator)
    while held:
        yield _drawn(held, generator)


def _drawn(held: list[Any], generator: np.random.Generator) -> Any:
    at = int(generator.integers(len(held)))
    held[at], held[-1] = held[-1], held[at]
    return held.pop()


class Batches(IterableDataset[Fetched]):
    """Batches of rows, from the number `first` on. Those before it are read but not decoded."""

    def __init__(
        self, rows: Callable[[], Iterable[Any]], reader: Reader, size: int, first: int, last: int | None
    ) -> None:
        self.rows, self.reader, self.size, self.first, self.last = rows, reader, size, first, last

    def __iter__(self) -> Iterator[Fetched]:
        rows = islice(enumerate(self.rows()), self.first, self.last)
        while batch := list(islice(rows, self.size)):
            yield self.reader.fetched(batch)


class StreamLoader:
    """Batches of a stream. With `stream` it is a training epoch: shards in an order, and samples out of a buffer, drawn from
    (seed, epoch), which a checkpoint can go on from; without, all there is, as it comes.

    `datasets` does not shuffle here: it would shuffle samples otherwise in a worker than without, and shards it reads in
    threads, after which it sleeps for five seconds, as Arrow may abort where Python ends before they do.
    """

    def __init__(
        self, table: Any, reader: Reader, size: int, workers: int, corrupt: Corrupt, *, seed: int, stream: Stream | None
    ) -> None:
        self.table, self.reader, self.seed = table, reader, seed
        self.size, self.workers, self.corrupt = size, workers, corrupt
        self.stream, self.samples = stream, None if stream is None else stream.samples
        self.epoch, self.given, self.counted = 0, 0, 0
        self.sampler, self.batch_sampler = self, None  # Lightning asks for both, and tells one the epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.corrupt.found.clear()  # numbers count the samples of one epoch

    def __len__(self) -> int:
        if self.samples is None:
            raise TypeError("nobody knows how long a stream is")
        return -(-self.samples // self.size)

    def rows(self) -> Iterable[Any]:
        if self.stream is None:
            return self.table
        count = self.table.num_shards
        order = np.random.default_rng([self.seed, self.epoch, 1]).permutation(count)
        shards = (self.table.shard(count, int(number)) for number in order)
        return shuffled(by_turns(shards, SHARDS), self.stream.buffer, [self.seed, self.epoch])

    def fetched(self) -> Iterator[Fetched]:
        left = Batches(self.rows, self.reader, self.size, self.given * self.size, self.samples)
        for batch in DataLoader(left, batch_size=None, num_workers=self.workers):
            self.given = (self.given + 1) % len(self) if self.samples else 0
            yield batch
        self.given = 0  # also where there was less than was said

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.counted = 0
        for batch in self.corrupt.sound(self.fetched()):
            self.counted += len(batch[1])
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"] % len(self)
