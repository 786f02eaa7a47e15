"""Windows cut out of a stream of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from zoo.data.corpora.corpus import Stream
from zoo.data.corpora.places import Places, Streams, Strides, Tiles
from zoo.errors import Invalid
from zoo.samples import Windows

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
            raise Invalid("stride", f"{self.stride} is more than the length {self.length}: targets would be left out")
        if self.streams and self.stride is not None:
            raise Invalid("stride", "windows of streams follow one another, so they cannot overlap; leave it out")
        if self.streams and self.windows == "random":
            raise Invalid("windows", "windows of streams follow one another; set it to contiguous")
        if self.streams and self.documents:
            raise Invalid("documents", "are numbered within a window, so streams cannot tell them apart; leave one out")

    @property
    def told(self) -> str:
        """How windows of an evaluation lie, in words."""
        if self.streams:
            return (
                "each after the one before, which a model with memory remembers; a rest that fills no step is left out"
            )
        if self.stride is None or self.stride == self.length:
            return "side by side"
        return f"sliding by {self.stride}, the last {self.stride} asked"

    def rows(self, part: str, processes: int = 1) -> int:
        """How many streams there are at once; in evaluation as many as a batch has, however many processes share it."""
        return self.batch_size * processes if part == "train" else self.batch_size

    def places(self, part: str, size: int, processes: int = 1) -> Places:
        """Where windows lie in the `size` tokens of a part. Raises Invalid where not one fits."""
        rows = self.rows(part, processes) if self.streams else 1
        if size <= rows * self.length:
            told = f"{rows} streams of {self.length}" if self.streams else f"a window of {self.length}"
            raise Invalid("length", f"{told} needs {rows * self.length + 1} tokens, {part} has {size}")
        if self.streams:
            return Streams(self.length, size, rows)
        if part == "train":
            return Tiles(self.length, size)
        return Strides(self.length, size, self.stride or self.length)


class Cut(Dataset[Windows]):
    """The windows of one part, fetched by batches of keys. With a `seed`, starts are drawn from (seed, epoch, index)."""

    def __init__(
        self, stream: Stream, places: Places, length: int, *, documents: bool, lengths: NDArray[Any] | None,
        seed: int | None = None,
    ) -> None:  # fmt: skip
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
    tokens: NDArray[Any], asked: NDArray[Any], documents: NDArray[Any] | None, lengths: NDArray[Any] | None
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
        None if lengths is None else torch.from_numpy(np.where(targets == UNASKED, 0, lengths[targets.clip(0)])),
    )
