"""Learned rows for the places of a text or a grid, read at other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import torch
from torch import Tensor

from zoo.attention import Tokens
from zoo.attention.coordinates import grid
from zoo.errors import OptionError


def taps(pos: Tensor, sizes: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """The 4^P neighbours of coordinates [.., P] on a grid: (weight [.., 1], row [..]). Past an edge, the edge repeats."""
    base = pos.floor()
    weights = _cubic(pos - base)  # four of [.., P]
    for taps in product(range(4), repeat=len(sizes)):
        weight, slot = torch.ones_like(pos[..., 0]), torch.zeros_like(pos[..., 0], dtype=torch.long)
        for axis, (tap, size) in enumerate(zip(taps, sizes, strict=True)):
            weight = weight * weights[tap][..., axis]
            slot = slot * size + (base[..., axis].long() + tap - 1).clamp(0, size - 1)
        yield weight[..., None], slot


def _cubic(t: Tensor, a: float = -0.75) -> tuple[Tensor, ...]:
    """Weights of the neighbours at -1, 0, 1, 2 for a point at t in [0, 1): cubic convolution (Keys 1981)."""

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


ROWS = "How large the learned vector of each place is: places seldom trained on stay as they began."


def read_rows(
    table: Tensor, tokens: Tokens, sizes: tuple[int, ...], stretch: float = 1.0
) -> Tensor:
    """Rows [1|B, N, D] of a table for a grid of `sizes`, at the places of tokens; on several axes resampled.

    On one it is read over `stretch` times as many places, resampled likewise.
    """
    pos = tokens.pos
    if tokens.grid_size is not None and len(sizes) > 1:
        pos = _resampled(pos, pos.new_tensor(sizes) / tokens.grid_size)
    if len(sizes) == 1:
        _check(pos, round(sizes[0] * stretch), tokens.has_position)
        pos = pos if stretch == 1 else _resampled(pos, 1 / stretch)
    return sum(weight * table[slot] for weight, slot in taps(pos, sizes))  # type: ignore[return-value]


def resize_table(
    table: Tensor, there: tuple[int, ...], here: tuple[int, ...], initial: Tensor
) -> Tensor | None:
    """A table for a grid of sizes `there` as one for `here`, read as `rows` reads it at another size.

    Each frame of a clip has the rows of an image, an image the mean of a clip's frames. A longer text keeps the `initial`
    rows past the end. None where a text meets a grid.
    """
    if there == here:
        return table
    if len(there) == len(here) == 1:
        return (
            torch.cat([table, initial[there[0] :]])[: here[0]]
            if table.shape[1] == initial.shape[1]
            else None
        )
    if 1 in (len(there), len(here)):
        return None
    if len(there) > len(here):
        there, table = there[1:], table.unflatten(0, there).mean(0).flatten(0, 1)
    sizes = here[-len(there) :]
    tokens = Tokens.at(table.new_empty(1, prod(sizes), 0), grid(sizes, table))
    read = read_rows(table, tokens.replace(grid_size=tokens.pos.new_tensor([[sizes]])), there)[0]
    return read.repeat(prod(here) // prod(sizes), 1)


def _resampled(pos: Tensor, share: Tensor | float) -> Tensor:
    """Places of a grid that has a `share` of the points on each axis, as the middles of cells go."""
    return (pos + 0.5) * share - 0.5


def _check(pos: Tensor, length: int, placed: Tensor | None) -> None:
    if pos.is_meta or torch.compiler.is_compiling():
        return
    rows = pos[..., 0].round() if placed is None else torch.where(placed, pos[..., 0].round(), 0)
    if rows.numel() and not rows.min() >= 0:
        raise OptionError("pos", f"position {rows.min():g} is before the table, whose first is 0")
    if rows.numel() and rows.max() >= length:
        past = f"position {int(rows.max())} is past the table of {length} positions"
        raise OptionError(
            "length", f"{past}; train at a larger length, or use an encoding that extrapolates"
        )
