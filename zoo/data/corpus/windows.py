"""Windows cut out of a stream of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from zoo.data.corpus.corpus import Stream
from zoo.data.spec import Windows
from zoo.errors import OptionError

ROW, OFFSET, TOKEN = range(3)


class Place(NamedTuple):
    """Where a window begins: the number of a row, and how many of its tokens come before."""

    row: int = 0
    offset: int = 0


class Window(NamedTuple):
    """`tokens` [N + 1] and the row of each, of which the last `asked` are targets; `after` is where the next one begins."""

    tokens: NDArray[Any]
    rows: NDArray[Any]
    asked: int
    after: Place


@dataclass(frozen=True)
class Packing:
    """Windows of `length` side by side, as a token of the last one is the first of the next. What is less than one at the
    end is left, or with `whole` makes a window that is moved back so that it is full: each target is asked once.
    """

    encode: Callable[[int, str], NDArray[Any]]  # of the number of a row and its text
    length: int
    whole: bool

    def windows(self, texts: Iterable[str], first: Place) -> Iterator[Window]:
        """Of the rows from a place on; those before it are not encoded. Holds one row and less than a window."""
        held = np.empty((3, 0), np.int64)  # row, offset and token of each, not yet given
        given = held  # the last window
        for number, text in enumerate(texts):
            if number < first.row:
                continue
            held = np.concatenate([held, self._row(number, text, first)], axis=1)
            for end in range(self.length, held.shape[1], self.length):
                given = held[:, end - self.length : end + 1]
                yield self._window(given, self.length)
            held = held[:, (held.shape[1] - 1) // self.length * self.length if held.size else 0 :]
        left = held.shape[1] - 1
        if self.whole and left > 0 and given.size:
            yield self._window(np.concatenate([given[:, left:-1], held], axis=1), left)

    def _row(self, number: int, text: str, first: Place) -> NDArray[Any]:
        tokens = self.encode(number, text).astype(np.int64)
        row = np.stack([np.full_like(tokens, number), np.arange(len(tokens)), tokens])
        return row[:, first.offset :] if number == first.row else row

    def _window(self, held: NDArray[Any], asked: int) -> Window:
        return Window(
            held[TOKEN], held[ROW], asked, Place(int(held[ROW, -1]), int(held[OFFSET, -1]))
        )


class Places(Protocol):
    """Where windows begin."""

    def __len__(self) -> int: ...

    def starts(self, indices: NDArray[Any]) -> NDArray[Any]: ...

    def asked(self, indices: NDArray[Any]) -> NDArray[Any]:
        """How many of the last targets of each window are asked."""
        ...


@dataclass(frozen=True)
class Tiles:
    """Windows side by side; what is left at the end is less than one."""

    length: int
    size: int

    def __len__(self) -> int:
        return (self.size - 1) // self.length

    def starts(self, indices: NDArray[Any]) -> NDArray[Any]:
        return indices * self.length

    def asked(self, indices: NDArray[Any]) -> NDArray[Any]:
        return np.full(len(indices), self.length)


@dataclass(frozen=True)
class Strides:
    """A window every `stride` tokens, the last moved back so that it is full: each target is asked once."""

    length: int
    size: int
    stride: int

    def __len__(self) -> int:
        return 1 - (self.length + 1 - self.size) // self.stride

    def starts(self, indices: NDArray[Any]) -> NDArray[Any]:
        return np.minimum(indices * self.stride, self.size - 1 - self.length)

    def asked(self, indices: NDArray[Any]) -> NDArray[Any]:
        return np.where(
            indices == 0, self.length, self.starts(indices) - (indices - 1) * self.stride
        )


@dataclass(frozen=True)
class Streams:
    """Rows that go on from batch to batch, each through its own stretch of the tokens."""

    length: int
    size: int
    rows: int

    def __len__(self) -> int:
        return (self.size - 1) // (self.rows * self.length) * self.rows

    def starts(self, indices: NDArray[Any]) -> NDArray[Any]:
        step, row = np.divmod(indices, self.rows)
        return (row * (len(self) // self.rows) + step) * self.length

    def asked(self, indices: NDArray[Any]) -> NDArray[Any]:
        return np.full(len(indices), self.length)


UNASKED = -100
Key = int | tuple[int, int]  # an index, or epoch and index


@dataclass(frozen=True)
class Cutting:
    """How windows are cut; the options of a source of text, checked against each other."""

    length: int
    batch_size: int
    windows: Literal["contiguous", "random"]
    documents: bool
    streams: bool
    stride: int | None

    def __post_init__(self) -> None:
        if self.stride is not None and self.stride > self.length:
            raise OptionError(
                "stride",
                f"{self.stride} is more than the length {self.length}: targets would be left out",
            )
        if self.streams and self.stride is not None:
            raise OptionError(
                "stride",
                "windows of streams follow one another, so they cannot overlap; leave it out",
            )
        if self.streams and self.windows == "random":
            raise OptionError(
                "windows", "windows of streams follow one another; set it to contiguous"
            )
        if self.streams and self.documents:
            raise OptionError(
                "documents",
                "are numbered within a window, so streams cannot tell them apart; leave one out",
            )

    @property
    def told(self) -> str:
        """How windows of an evaluation lie, in words."""
        if self.streams:
            return "each after the one before, which a model with memory remembers; a rest that fills no step is left out"
        if self.stride is None or self.stride == self.length:
            return "side by side"
        return f"sliding by {self.stride}, the last {self.stride} asked"

    def rows(self, part: str, processes: int = 1) -> int:
        """How many streams there are at once; in evaluation as many as a batch has, however many processes share it."""
        return self.batch_size * processes if part == "train" else self.batch_size

    def places(self, part: str, size: int, processes: int = 1) -> Places:
        """Where windows lie in the `size` tokens of a part. Raises OptionError where not one fits."""
        rows = self.rows(part, processes) if self.streams else 1
        if size <= rows * self.length:
            told = (
                f"{rows} streams of {self.length}" if self.streams else f"a window of {self.length}"
            )
            raise OptionError(
                "length", f"{told} needs {rows * self.length + 1} tokens, {part} has {size}"
            )
        if self.streams:
            return Streams(self.length, size, rows)
        if part == "train":
            return Tiles(self.length, size)
        return Strides(self.length, size, self.stride or self.length)


class Cut(Dataset[Windows]):
    """The windows of one part, fetched by batches of keys. With a `seed`, starts are drawn from (seed, epoch, index)."""

    def __init__(
        self,
        stream: Stream,
        places: Places,
        length: int,
        *,
        documents: bool,
        lengths: NDArray[Any] | None,
        seed: int | None = None,
    ) -> None:
        self.stream, self.places, self.length, self.seed = stream, places, length, seed
        self.documents, self.lengths = documents, lengths

    def __len__(self) -> int:
        return len(self.places)

    def __getitems__(self, keys: Sequence[Key]) -> Windows:
        indices = np.array([key if isinstance(key, int) else key[1] for key in keys])
        starts = self.places.starts(indices) if self.seed is None else self._drawn(self.seed, keys)
        positions = starts[:, None] + np.arange(self.length + 1)  # [B, N + 1]
        tokens = self.stream.tokens[positions].astype(np.int64)
        asked = np.arange(self.length, 0, -1) <= self.places.asked(indices)[:, None]  # [B, N]
        documents = self.stream.documents(positions) if self.documents else None
        return windows(tokens, asked, documents, self.lengths)

    def _drawn(self, seed: int, keys: Sequence[Key]) -> NDArray[Any]:
        last = len(self.stream.tokens) - 1 - self.length
        pairs = [key for key in keys if isinstance(key, tuple)]
        return np.array([np.random.default_rng([seed, *pair]).integers(last + 1) for pair in pairs])


def windows(
    tokens: NDArray[Any],
    asked: NDArray[Any],
    documents: NDArray[Any] | None,
    lengths: NDArray[Any] | None,
) -> Windows:
    """A batch of tokens [B, N + 1], targets that are asked [B, N], and maybe documents [B, N + 1] that are kept apart.

    `lengths` are those of the vocabulary's tokens in UTF-8, where it says them.
    """
    if documents is not None:
        asked = asked & (documents[:, 1:] == documents[:, :-1])
    targets = np.where(asked, tokens[:, 1:], UNASKED)
    return Windows(
        torch.from_numpy(tokens[:, :-1]),
        torch.from_numpy(targets),
        None if documents is None else torch.from_numpy(documents[:, :-1] - documents[:, :1]),
        None
        if lengths is None
        else torch.from_numpy(np.where(targets == UNASKED, 0, lengths[targets.clip(0)])),
    )
