"""A learned vector per position added to the input (Gehring et al. 2017, arXiv:1705.03122; ViT, arXiv:2010.11929)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor, nn

from zoo.attention.encoding import Dims, Encoding
from zoo.attention.tokens import Tokens
from zoo.errors import Invalid
from zoo.registry import register


@register
class Learned(Encoding):
    """x + table[p]

    `table` has a row per position of training, row-major over several axes. A grid of another size reads it bicubically
    at fractions of the grid, as images are resized (a = -0.75, no antialiasing); a text longer than the table is refused.
    `shared: false` adds a table of its own to the attention input of every layer (Al-Rfou et al. 2019, arXiv:1808.04444).
    """

    axes = (1, 2, 3)

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.table = nn.Parameter(nn.init.normal_(torch.empty(dims.tokens, dims.dim), std=0.02))  # [tokens, D]

    def embed(self, tokens: Tokens) -> Tokens:
        return self._added(tokens) if self.shared else tokens

    def annotate(self, tokens: Tokens) -> Tokens:
        return tokens if self.shared else self._added(tokens)

    def _added(self, tokens: Tokens) -> Tokens:
        pos, sizes = tokens.pos, self.dims.sizes
        if tokens.extent is not None and len(sizes) > 1:
            pos = (pos + 0.5) * (pos.new_tensor(sizes) / tokens.extent[:, None]) - 0.5
        if len(sizes) == 1:
            self._check(pos, sizes[0], tokens.placed)
        rows = sum(weight * self.table[slot] for weight, slot in _taps(pos, sizes))
        return tokens.replace(x=tokens.x + rows.to(tokens.x.dtype))  # type: ignore[union-attr]

    @staticmethod
    def _check(pos: Tensor, length: int, placed: Tensor | None) -> None:
        if pos.is_meta or torch.compiler.is_compiling():
            return
        last = pos[..., 0].round() if placed is None else pos[..., 0].round() * placed
        if last.numel() and last.max() >= length:
            past = f"position {int(last.max())} is past the learned table of {length} positions"
            raise Invalid("length", f"{past}; train at a larger length, or use an encoding that extrapolates")


def _taps(pos: Tensor, sizes: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
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
