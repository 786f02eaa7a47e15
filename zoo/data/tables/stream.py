"""Tables streamed from wherever they are, never held whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from zoo.data.sampler import Share
from zoo.data.tables.dataset import Corrupt, Fetched, Reader
from zoo.data.tables.open_table import rows
from zoo.errors import DataError
from zoo.registry import Count

SHARDS = 10  # read by turns


@dataclass(frozen=True, kw_only=True)
class Stream:
    """How training samples are streamed: so many `samples` are an epoch, drawn out of a `buffer` of so many."""

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


def ordered(table: Any, title: str, seed: int, epoch: int, buffer: int) -> Iterator[Any]:
    """The rows of an epoch of training: shards in an order, and rows out of a buffer, drawn from (seed, epoch). Raises
    DataError, which begins with `title`.

    `datasets` does not shuffle here: it would shuffle samples otherwise in a worker than without, and shards it reads in
    threads, after which it sleeps for five seconds, as Arrow may abort where Python ends before they do.
    """
    count = table.num_shards
    order = np.random.default_rng([seed, epoch, 1]).permutation(count)
    shards = (rows(table.shard(count, int(number)), title) for number in order)
    return shuffled(by_turns(shards, SHARDS), buffer, [seed, epoch])


def loaded(batches: IterableDataset[Any], workers: int) -> Iterator[Any]:
    """What `batches` yields, here or in a worker. Draws nothing from the global random state, which is left to the model."""
    generator = torch.Generator()
    for found in DataLoader(
        _Told(batches), batch_size=None, num_workers=workers, generator=generator
    ):
        if isinstance(found, DataError):
            raise found
        yield found


class _Told(IterableDataset[Any]):
    """What `batches` yields, and a DataError that ends it: raised in a worker it would come with a traceback in its words."""

    def __init__(self, batches: IterableDataset[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.batches
        except DataError as error:
            yield error


def batched(rows: Iterable[Any], size: int, least: int) -> Iterator[list[Any]]:
    """Rows in lists of `size`; a last one of less than `least` is joined to the one before."""
    rows, held = iter(rows), list[Any]()
    while batch := list(islice(rows, size)):
        if held and len(batch) >= least:
            yield held
            held = []
        held = held + batch
    if len(held) >= least:
        yield held


class Batches(IterableDataset[tuple[int, Fetched]]):
    """The lengths of batches of `together` rows, from the row number `first` on, and a process' share of each.

    Those before it, and other processes' share, are read but not decoded.
    """

    def __init__(
        self,
        rows: Callable[[], Iterable[Any]],
        reader: Reader,
        together: int,
        share: Share,
        first: int,
        last: int | None,
    ) -> None:
        self.rows, self.reader, self.together, self.share = rows, reader, together, share
        self.first, self.last = first, last

    def __iter__(self) -> Iterator[tuple[int, Fetched]]:
        rows = islice(enumerate(self.rows()), self.first, self.last)
        for batch in batched(rows, self.together, self.share.processes):
            yield len(batch), self.reader.fetched(self.share.of(batch))


class Epochs:
    """What is asked of a loader of a stream: an epoch of `samples`, dealt out in batches of `together`, that a checkpoint can
    go on from; None for all there is, once.
    """

    def __init__(self, samples: int | None, together: int, share: Share) -> None:
        self.samples = None if samples is None else samples - samples % share.processes
        self.together, self.share = together, share
        self.epoch = self.counted = (
            0  # `counted`: the samples that were given since an epoch was begun
        )
        self.given = self.first = (
            0  # samples of this epoch that were given; the one that the next begins with
        )
        self.held = False
        # Lightning asks for both samplers, and tells one the epoch
        self.order, self.sampler, self.batch_sampler = self, self, None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = 0 if self.held else epoch

    def __len__(self) -> int:
        if self.samples is None:
            raise TypeError("nobody knows how long a stream is")
        return -(-self.samples // self.together)

    def begin(self) -> None:
        """Begin an epoch, or once go on from where a checkpoint was in it."""
        self.given = self.first
        self.first = self.counted = 0

    def advance(self, count: int) -> None:
        """Note that a batch of `count` samples, those of all processes, is given."""
        self.counted += count
        self.given = (
            min(self.given + self.together, self.samples) % self.samples if self.samples else 0
        )

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert self.samples is not None
        self.given = self.first = state["given"] % self.samples


class StreamLoader(Epochs):
    """Batches of a stream. With `stream` it is a training epoch, `ordered`; without, all there is, as it comes."""

    def __init__(
        self,
        table: Any,
        reader: Reader,
        size: int,
        workers: int,
        corrupt: Corrupt,
        share: Share,
        *,
        seed: int,
        stream: Stream | None,
    ) -> None:
        super().__init__(None if stream is None else stream.samples, size * share.processes, share)
        self.table, self.reader, self.workers, self.corrupt = table, reader, workers, corrupt
        self.seed, self.stream, self.title = seed, stream, reader.title

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.corrupt.found.clear()  # numbers count the samples of one epoch

    def rows(self) -> Iterable[Any]:
        if self.stream is None:
            return rows(self.table, self.title)
        return ordered(self.table, self.title, self.seed, self.epoch, self.stream.buffer)

    def fetched(self) -> Iterator[Fetched]:
        self.begin()
        left = Batches(self.rows, self.reader, self.together, self.share, self.given, self.samples)
        for count, batch in loaded(left, self.workers):
            self.advance(count)
            yield batch
        self.given = 0  # also where there was less than was said

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.corrupt.sound(self.fetched())
