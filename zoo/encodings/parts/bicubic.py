"""Reading a table on a grid between its points: cubic convolution (Keys 1981), as images are resized."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor


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
