"""Coordinates: grids of indices, the conventions that turn indices into coordinates, and what training does to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from zoo.attention.tokens import Tokens
from zoo.errors import OptionError
from zoo.registry import Between

CONVENTIONS = ("index", "fraction", "growing", "symmetric", "interpolated")


def grid(sizes: Sequence[int], like: Tensor) -> Tensor:
    """Indices [N, P] of a grid with these sizes, row-major, in array order ((row, column), (frame, row, column))."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    axes = [torch.arange(size, device=like.device, dtype=dtype) for size in sizes]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)


def apply_convention(tokens: Tokens, convention: str, length: Sequence[int] | None) -> Tokens:
    """The same tokens with `pos` under a convention. With n the extent of an axis now and n0 its `length` in training:

    index i, fraction (i + 1/2) / n, growing linspace(0, n / n0, n) at i, symmetric 2 (i + 1/2) / n - 1, interpolated
    i min(1, n0 / n): index, but for axes longer than in training.
    Coordinates that were given as such (`extent` None) are left alone.
    """
    if tokens.grid_size is None:
        return tokens
    if convention == "index":
        return tokens if tokens.pos is tokens.index else tokens.replace(pos=tokens.index)
    index, extent = tokens.index, tokens.grid_size
    if convention in ("growing", "interpolated"):
        if length is None:
            raise OptionError(
                "coordinates",
                f"{convention} coordinates need the size of training: Dims(length=...)",
            )
        trained = extent.new_tensor(length)
        if convention == "growing":
            pos = index * extent / ((extent - 1).clamp(min=1) * trained)
        else:
            pos = index * (trained / extent).clamp(max=1)
    else:
        pos = (index + 0.5) / extent
        pos = 2 * pos - 1 if convention == "symmetric" else pos
    return tokens.replace(pos=pos, consecutive=False)


def spacing(tokens: Tokens, convention: str, length: Sequence[int] | None) -> Tensor:
    """How far neighbours are apart under a convention, [1|B, 1|N, P]: 1 for index, 2 / n for symmetric.

    n is the extent or, where coordinates were given as such, the `length` in training. Raises OptionError where it is needed
    and nobody said it.
    """
    if convention == "index":
        return torch.ones_like(tokens.pos[:1, :1])
    extent = tokens.grid_size
    if extent is None:
        if length is None:
            raise OptionError(
                "length", f"{convention} coordinates need the size of training: Dims(length=...)"
            )
        extent = tokens.pos.new_tensor(length).expand(1, 1, -1)
    zero, one = (
        tokens.replace(index=torch.full_like(tokens.index, n), grid_size=extent) for n in (0.0, 1.0)
    )
    return (
        apply_convention(one, convention, length).pos
        - apply_convention(zero, convention, length).pos
    )


def jitter(index: Tensor, sigma: Sequence[float]) -> Tensor:
    """Each index [.., P] moved by N(0, sigma^2) patches, truncated to its patch (-1/2, 1/2): ComRoPE's perturbation.

    One `sigma` per axis, 0 for an axis that stays. Truncated means drawn anew, not clamped: no draw sits on an edge.
    """
    widths = index.new_tensor(sigma)  # [P]
    edge = torch.erf(0.5 / (widths.clamp(min=1e-6) * math.sqrt(2))).clamp(
        max=1 - 1e-6
    )  # P(|draw| < 1/2)
    uniform = torch.rand_like(index) * 2 - 1
    draw = torch.erfinv(uniform * edge) * widths * math.sqrt(2)
    return index + draw.clamp(-0.5, 0.5)  # the clamp only catches rounding at the very edge


def stretch(index: Tensor, most: float, each: bool = False, factors: int = 1) -> Tensor:
    """Indices [.., N, P] stretched about the centre of their grid by one factor exp(U(-log most, log most)) for all axes, or
    by P `factors`.

    Of indices [B, N, P], by the same for all samples, unless `each` has its own.
    """
    centre = (index.amin(-2, keepdim=True) + index.amax(-2, keepdim=True)) / 2
    shape = (*index.shape[:-2], 1, factors) if each else (factors,)
    draw = torch.rand(shape, dtype=index.dtype, device=index.device) * 2 - 1
    return centre + (index - centre) * torch.exp(draw * math.log(most))


def shift(index: Tensor, most: float, each: bool = False) -> Tensor:
    """Indices [.., N, P] moved by one draw of U(-most, most) patches for each axis, and for `each` sample if asked."""
    shape = (*index.shape[:-2], 1, index.shape[-1]) if each else index.shape[-1:]
    draw = torch.rand(shape, dtype=index.dtype, device=index.device) * 2 - 1
    return index + draw * most


@dataclass(frozen=True, kw_only=True)
class PositionAugmentation:
    """What training does to coordinates: jitter, then aspect, then stretch, then shift.

    `jitter` is sigma, in patches, for each token by itself (ComRoPE). `stretch` is the largest factor by which a grid grows
    or shrinks about its centre, `aspect` that of each axis by itself, and `shift` the farthest it moves along each axis, in
    patches (CAPE, arXiv:2106.03143; DINOv3, arXiv:2508.10104, which calls them rescale, jitter and shift, this one in
    halves of the grid). Rows and columns move; the frames of a clip do not.

    Drawn once per pass for all samples, so that rotations are made once for them; with `per_sample` each draws for itself.
    """

    jitter: Annotated[float, Between(0)] = 0.0
    stretch: Annotated[float, Between(1)] = 1.0
    aspect: Annotated[float, Between(1)] = 1.0
    shift: Annotated[float, Between(0)] = 0.0
    per_sample: bool = False

    def __post_init__(self) -> None:
        if self.per_sample and self.is_identity:
            raise OptionError(
                "per_sample",
                "nothing is drawn for any sample; set jitter, stretch, aspect or shift",
            )

    @property
    def is_identity(self) -> bool:
        """Whether it leaves all as it is."""
        return not self.jitter and self.stretch == self.aspect == 1 and not self.shift

    def __call__(self, index: Tensor, samples: int = 1) -> Tensor:
        """Indices [N, P] or [1|B, N, P], moved; those of each of the samples, [B, N, P], where they draw for themselves."""
        if self.is_identity:
            return index
        if self.per_sample:
            index = index.expand(samples, *index.shape[-2:])
        first = 1 if index.shape[-1] == 3 else 0
        frames, moving = index[..., :first], index[..., first:]
        if self.jitter:
            moving = jitter(moving, [self.jitter] * moving.shape[-1])
        if self.aspect > 1:
            moving = stretch(moving, self.aspect, self.per_sample, moving.shape[-1])
        if self.stretch > 1:
            moving = stretch(moving, self.stretch, self.per_sample)
        if self.shift:
            moving = shift(moving, self.shift, self.per_sample)
        return torch.cat([frames, moving], dim=-1)
