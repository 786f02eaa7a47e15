"""Coordinates: grids of indices, the conventions that turn indices into coordinates, and jitter in training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from zoo.attention.tokens import Tokens
from zoo.errors import Invalid
from zoo.registry import Between

CONVENTIONS = ("index", "fraction", "growing", "symmetric")


def grid(sizes: Sequence[int], like: Tensor) -> Tensor:
    """Indices [N, P] of a grid with these sizes, row-major, in array order ((row, column), (frame, row, column))."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    axes = [torch.arange(size, device=like.device, dtype=dtype) for size in sizes]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)


def place(tokens: Tokens, convention: str, length: Sequence[int] | None) -> Tokens:
    """The same tokens with `pos` under a convention. With n the extent of an axis now and n0 its `length` in training:

    index i, fraction (i + 1/2) / n, growing linspace(0, n / n0, n) at i, symmetric 2 (i + 1/2) / n - 1.
    Coordinates that were given as such (`extent` None) are left alone.
    """
    if tokens.extent is None:
        return tokens
    if convention == "index":
        return tokens if tokens.pos is tokens.index else tokens.replace(pos=tokens.index)
    index, extent = tokens.index, tokens.extent
    if convention == "growing":
        if length is None:
            raise Invalid("coordinates", "growing coordinates need the size of training: Dims(length=...)")
        pos = index * extent / ((extent - 1).clamp(min=1) * extent.new_tensor(length))
    else:
        pos = (index + 0.5) / extent
        pos = 2 * pos - 1 if convention == "symmetric" else pos
    return tokens.replace(pos=pos)


def jitter(index: Tensor, sigma: Sequence[float]) -> Tensor:
    """Each index [.., P] moved by N(0, sigma^2) patches, truncated to its patch (-1/2, 1/2): ComRoPE's perturbation.

    One `sigma` per axis, 0 for an axis that stays. Truncated means drawn anew, not clamped: no draw sits on an edge.
    """
    widths = index.new_tensor(sigma)  # [P]
    edge = torch.erf(0.5 / (widths.clamp(min=1e-6) * math.sqrt(2))).clamp(max=1 - 1e-6)  # P(|draw| < 1/2)
    uniform = torch.rand_like(index) * 2 - 1
    draw = torch.erfinv(uniform * edge) * widths * math.sqrt(2)
    return index + draw.clamp(-0.5, 0.5)  # the clamp only catches rounding at the very edge


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """What training does to coordinates, drawn once per pass for all samples. `jitter` is sigma, in patches.

    Rows and columns move; the frames of a clip do not.
    """

    jitter: Annotated[float, Between(0)] = 0.0

    def __call__(self, index: Tensor) -> Tensor:
        if not self.jitter:
            return index
        axes = index.shape[-1]
        return jitter(index, [0.0 if axes == 3 and axis == 0 else self.jitter for axis in range(axes)])
