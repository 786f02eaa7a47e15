"""Windows packed from the tokens of rows that follow one another, a row at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
        return Window(held[TOKEN], held[ROW], asked, Place(int(held[ROW, -1]), int(held[OFFSET, -1])))
