"""Windows of a fixed length from a stream of tokens."""

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
    """The start of a window: the number of a row, and an offset in its tokens."""

    row: int = 0
    offset: int = 0


class Window(NamedTuple):
    """A window that is packed from rows."""

    tokens: NDArray[Any]
    """Tokens [N + 1]."""
    rows: NDArray[Any]
    """The row of each token [N + 1]."""
    num_targets: int
    """Number of targets, which are the last tokens."""
    end: Cursor
    """Start of the next window."""


@dataclass(frozen=True)
class Packing:
    """A packer of rows, which are read one by one, into contiguous windows.

    The last token of a window is the first one of the next. A remainder shorter than a window is
    dropped or, with `keep_rest`, extended backwards to a full window; every target then counts
    once.
    """

    encode: Callable[[int, Any], NDArray[Any]]
    """Encodes a row from its number and text."""
    length: int
    keep_rest: bool

    def pack(self, texts: Iterable[Any], first: Cursor) -> Iterator[Window]:
        """Yield windows from a cursor on, without encoding earlier rows.

        At most one row and one window are in memory.
        """
        # The row, the offset and the token of each token that is not in a window yet.
        held = np.empty((3, 0), np.int64)
        window = held
        for number, row in enumerate(texts):
            if number < first.row:
                continue
            held = np.concatenate([held, self._encode_row(number, row, first)], axis=1)
            for end in range(self.length, held.shape[1], self.length):
                window = held[:, end - self.length : end + 1]
                yield self._build_window(window, self.length)
            # The last token of the last window is the first input of the next one.
            if held.size:
                held = held[:, (held.shape[1] - 1) // self.length * self.length :]

        remainder = held.shape[1] - 1
        if self.keep_rest and remainder > 0 and window.size:
            yield self._build_window(
                np.concatenate([window[:, remainder:-1], held], axis=1), remainder
            )

    def _encode_row(self, number: int, content: Any, start: Cursor) -> NDArray[Any]:
        tokens = self.encode(number, content).astype(np.int64)
        row = np.stack([np.full_like(tokens, number), np.arange(len(tokens)), tokens])
        return row[:, start.offset :] if number == start.row else row

    def _build_window(self, held: NDArray[Any], num_targets: int) -> Window:
        end = Cursor(int(held[ROW, -1]), int(held[OFFSET, -1]))
        return Window(held[TOKEN], held[ROW], num_targets, end)


class WindowLayout(NamedTuple):
    """The positions of windows in a stream of tokens."""

    starts: NDArray[Any]
    """Index of the first token of each window."""
    num_targets: NDArray[Any]
    """Number of last targets of each window that count."""


def tile_windows(length: int, size: int) -> WindowLayout:
    """Lay out contiguous windows, and drop a remainder shorter than a window."""
    numbers = np.arange((size - 1) // length)
    return WindowLayout(numbers * length, np.full(len(numbers), length))


def slide_windows(length: int, size: int, stride: int) -> WindowLayout:
    """Lay out windows that start every `stride` tokens; every target counts once."""
    # The last window is moved back to end with the last token. Except in the first window, only
    # targets after the end of the window before count.
    numbers = np.arange(1 - (length + 1 - size) // stride)
    starts = np.minimum(numbers * stride, size - 1 - length)
    num_targets = starts - (numbers - 1) * stride
    num_targets[0] = length
    return WindowLayout(starts, num_targets)


def continue_windows(length: int, size: int, rows: int) -> WindowLayout:
    """Lay out windows so that each row of a batch continues in the next batch."""
    steps = (size - 1) // (rows * length)
    step, row = np.divmod(np.arange(steps * rows), rows)
    return WindowLayout((row * steps + step) * length, np.full(steps * rows, length))


@dataclass(frozen=True)
class WindowOptions:
    """The window options of text sources."""

    length: int
    batch_size: int
    windows: Literal["contiguous", "random"]
    documents: bool
    streams: bool
    stride: int | None

    def __post_init__(self) -> None:
        if self.stride is not None and self.stride > self.length:
            message = f"{self.stride} is more than the length {self.length}"
            raise OptionError("stride", f"{message}: some targets would be skipped")
        if not self.streams:
            return
        if self.stride is not None:
            message = "windows of streams follow each other, so they cannot overlap; leave it out"
            raise OptionError("stride", message)
        if self.windows == "random":
            message = "windows of streams follow each other; set it to contiguous"
            raise OptionError("windows", message)
        if self.documents:
            message = "streams cannot tell documents of different windows apart; leave one out"
            raise OptionError("documents", message)

    def describe(self) -> str:
        """Return a description of the windows of an evaluation."""
        if self.streams:
            remainder = "a remainder that does not fill a step is left out"
            return f"each continues the one before, for models with memory; {remainder}"
        if self.stride is None or self.stride == self.length:
            return "side by side"
        return f"sliding by {self.stride}, the last {self.stride} tokens of each are targets"

    def count_rows(self, split: str, world_size: int = 1) -> int:
        """Return the number of parallel streams; in evaluation it is the batch size."""
        return self.batch_size * world_size if split == "train" else self.batch_size

    def build_layout(self, split: str, size: int, world_size: int = 1) -> WindowLayout:
        """Lay out the windows in the `size` tokens of a split.

        Raises:
            OptionError: The split is shorter than a window.
        """
        # One token more than the windows, because the last target follows them.
        rows = self.count_rows(split, world_size) if self.streams else 1
        needed = rows * self.length + 1
        if size < needed:
            unit = f"{rows} streams" if self.streams else "a window"
            message = f"{unit} of {self.length} needs {needed} tokens, {split} has {size}"
            raise OptionError("length", message)
        if self.streams:
            return continue_windows(self.length, size, rows)
        if split == "train":
            return tile_windows(self.length, size)
        return slide_windows(self.length, size, self.stride or self.length)


class WindowDataset(Dataset[TextBatch]):
    """The windows of one split, fetched by batches of keys.

    Args:
        stream: The tokens.
        layout: The windows.
        length: Number of tokens in a window.
        documents: Whether documents are separate.
        lengths: Lengths of the vocabulary's tokens in bytes, or None.
        seed: Seed of random starts, which depend on (seed, epoch, index). None: use the layout.
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
        # The number of starts at which a window of N + 1 tokens fits.
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
        tokens: Tokens [B, N + 1].
        num_targets: Number of last tokens of each window that are targets [B].
        documents: Document numbers [B, N + 1]; no token is predicted from another document.
        lengths: Length of each token of the vocabulary in bytes.
    """
    length = tokens.shape[1] - 1
    is_target = np.arange(length, 0, -1) <= num_targets[:, None]  # [B, N]
    if documents is not None:
        is_target &= documents[:, 1:] == documents[:, :-1]
    targets = np.where(is_target, tokens[:, 1:], IGNORE_INDEX)
    batch = TextBatch(torch.from_numpy(tokens[:, :-1]), torch.from_numpy(targets))
    # Document numbers count from 0 in each window.
    if documents is not None:
        numbers = documents[:, :-1] - documents[:, :1]
        batch = batch._replace(documents=torch.from_numpy(numbers))
    if lengths is not None:
        target_bytes = np.where(is_target, lengths[targets.clip(0)], 0)
        batch = batch._replace(target_bytes=torch.from_numpy(target_bytes))
    return batch
