"""Windows of a fixed length, cut out of a stream of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from zoo.data.corpus.corpus import TokenStream
from zoo.data.sampler import Key
from zoo.data.spec import IGNORE_INDEX, TextBatch
from zoo.errors import OptionError

ROW, OFFSET, TOKEN = range(3)


class Cursor(NamedTuple):
    """Where a window begins: the number of a row, and how many of its tokens come before."""

    row: int = 0
    offset: int = 0


class Window(NamedTuple):
    """A window packed from rows."""

    tokens: NDArray[Any]
    """[N + 1]."""
    rows: NDArray[Any]
    """The row of each token."""
    num_targets: int
    """The last so many tokens are targets."""
    end: Cursor
    """Where the next window begins."""


@dataclass(frozen=True)
class Packing:
    """Packs rows that are read one by one into windows side by side.

    The last token of a window is the first one of the next. A remainder shorter than a window is
    dropped, or with `keep_rest` moved back to fill a window; every target then counts once.
    """

    encode: Callable[[int, str], NDArray[Any]]
    """Encodes a row, given its number and text."""
    length: int
    keep_rest: bool

    def pack(self, texts: Iterable[str], first: Cursor) -> Iterator[Window]:
        """Yield windows from a cursor on; rows before it are not encoded.

        At most one row and one window are in memory.
        """
        # row, offset and token of each token that no window has yet
        held = np.empty((3, 0), np.int64)
        last = held
        for number, text in enumerate(texts):
            if number < first.row:
                continue
            held = np.concatenate([held, self._encode_row(number, text, first)], axis=1)
            for end in range(self.length, held.shape[1], self.length):
                last = held[:, end - self.length : end + 1]
                yield self._build_window(last, self.length)
            if held.size:
                held = held[:, (held.shape[1] - 1) // self.length * self.length :]

        rest = held.shape[1] - 1
        if self.keep_rest and rest > 0 and last.size:
            yield self._build_window(np.concatenate([last[:, rest:-1], held], axis=1), rest)

    def _encode_row(self, number: int, text: str, first: Cursor) -> NDArray[Any]:
        tokens = self.encode(number, text).astype(np.int64)
        row = np.stack([np.full_like(tokens, number), np.arange(len(tokens)), tokens])
        return row[:, first.offset :] if number == first.row else row

    def _build_window(self, held: NDArray[Any], num_targets: int) -> Window:
        end = Cursor(int(held[ROW, -1]), int(held[OFFSET, -1]))
        return Window(held[TOKEN], held[ROW], num_targets, end)


class WindowLayout(NamedTuple):
    """Windows in a stream of tokens."""

    starts: NDArray[Any]
    """The first token of each window."""
    num_targets: NDArray[Any]
    """How many of the last targets of each window count."""


def tile_windows(length: int, size: int) -> WindowLayout:
    """Lay windows side by side; a remainder shorter than a window is dropped."""
    numbers = np.arange((size - 1) // length)
    return WindowLayout(numbers * length, np.full(len(numbers), length))


def slide_windows(length: int, size: int, stride: int) -> WindowLayout:
    """Begin a window every `stride` tokens, the last moved back; every target counts once."""
    numbers = np.arange(1 - (length + 1 - size) // stride)
    starts = np.minimum(numbers * stride, size - 1 - length)
    num_targets = starts - (numbers - 1) * stride
    num_targets[0] = length
    return WindowLayout(starts, num_targets)


def continue_windows(length: int, size: int, rows: int) -> WindowLayout:
    """Lay windows out in rows of a batch that continue from batch to batch."""
    steps = (size - 1) // (rows * length)
    step, row = np.divmod(np.arange(steps * rows), rows)
    return WindowLayout((row * steps + step) * length, np.full(steps * rows, length))


@dataclass(frozen=True)
class WindowOptions:
    """How windows are cut; the options of a source of text, validated together."""

    length: int
    batch_size: int
    windows: Literal["contiguous", "random"]
    documents: bool
    streams: bool
    stride: int | None

    def __post_init__(self) -> None:
        if self.stride is not None and self.stride > self.length:
            problem = f"{self.stride} is more than the length {self.length}"
            raise OptionError("stride", f"{problem}: targets would be left out")
        if not self.streams:
            return
        if self.stride is not None:
            problem = "windows of streams follow each other, so they cannot overlap; leave it out"
            raise OptionError("stride", problem)
        if self.windows == "random":
            problem = "windows of streams follow each other; set it to contiguous"
            raise OptionError("windows", problem)
        if self.documents:
            problem = "streams cannot tell documents of different windows apart; leave one out"
            raise OptionError("documents", problem)

    def describe(self) -> str:
        """Say how windows of an evaluation are laid out."""
        if self.streams:
            rest = "a remainder that does not fill a step is left out"
            return f"each continues the one before, for models with memory; {rest}"
        if self.stride is None or self.stride == self.length:
            return "side by side"
        return f"sliding by {self.stride}, the last {self.stride} tokens of each are targets"

    def count_rows(self, split: str, world_size: int = 1) -> int:
        """Return how many streams run in parallel; in evaluation as many as one batch has."""
        return self.batch_size * world_size if split == "train" else self.batch_size

    def build_layout(self, split: str, size: int, world_size: int = 1) -> WindowLayout:
        """Lay out windows in the `size` tokens of a split. Raises OptionError if none fits."""
        rows = self.count_rows(split, world_size) if self.streams else 1
        needed = rows * self.length + 1
        if size < needed:
            what = f"{rows} streams" if self.streams else "a window"
            problem = f"{what} of {self.length} needs {needed} tokens, {split} has {size}"
            raise OptionError("length", problem)
        if self.streams:
            return continue_windows(self.length, size, rows)
        if split == "train":
            return tile_windows(self.length, size)
        return slide_windows(self.length, size, self.stride or self.length)


class WindowDataset(Dataset[TextBatch]):
    """The windows of one split, fetched by batches of keys.

    Args:
        lengths: UTF-8 lengths of the vocabulary's tokens, or None.
        seed: Draw the starts of windows from (seed, epoch, index).
    """

    def __init__(
        self,
        stream: TokenStream,
        layout: WindowLayout,
        length: int,
        *,
        documents: bool,
        lengths: NDArray[Any] | None,
        seed: int | None = None,
    ) -> None:
        self.stream, self.layout, self.length, self.seed = stream, layout, length, seed
        self.documents, self.lengths = documents, lengths

    def __len__(self) -> int:
        return len(self.layout.starts)

    def __getitems__(self, keys: Sequence[Key]) -> TextBatch:
        numbers = np.array([key if isinstance(key, int) else key[1] for key in keys])
        starts = self.layout.starts[numbers]
        if self.seed is not None:
            starts = self._draw_starts(self.seed, keys)
        indices = starts[:, None] + np.arange(self.length + 1)  # [B, N + 1]
        tokens = self.stream.tokens[indices].astype(np.int64)
        num_targets = self.layout.num_targets[numbers]
        documents = self.stream.number_documents(indices) if self.documents else None
        return build_batch(tokens, num_targets, documents, self.lengths)

    def _draw_starts(self, seed: int, keys: Sequence[Key]) -> NDArray[Any]:
        count = len(self.stream.tokens) - self.length
        pairs = [key for key in keys if isinstance(key, tuple)]
        return np.array([np.random.default_rng([seed, *pair]).integers(count) for pair in pairs])


def build_batch(
    tokens: NDArray[Any],
    num_targets: NDArray[Any],
    documents: NDArray[Any] | None,
    lengths: NDArray[Any] | None,
) -> TextBatch:
    """Build a batch of windows.

    Args:
        tokens: [B, N + 1].
        num_targets: [B], how many of the last tokens of each window are targets.
        documents: [B, N + 1]; no token is predicted from another document.
        lengths: UTF-8 length of each token of the vocabulary.
    """
    length = tokens.shape[1] - 1
    is_target = np.arange(length, 0, -1) <= num_targets[:, None]  # [B, N]
    if documents is not None:
        is_target &= documents[:, 1:] == documents[:, :-1]
    targets = np.where(is_target, tokens[:, 1:], IGNORE_INDEX)
    batch = TextBatch(torch.from_numpy(tokens[:, :-1]), torch.from_numpy(targets))
    if documents is not None:
        own = documents[:, :-1] - documents[:, :1]
        batch = batch._replace(documents=torch.from_numpy(own))
    if lengths is not None:
        target_bytes = np.where(is_target, lengths[targets.clip(0)], 0)
        batch = batch._replace(target_bytes=torch.from_numpy(target_bytes))
    return batch
