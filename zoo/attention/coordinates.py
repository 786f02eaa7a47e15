"""Coordinates of tokens: grids, conventions and random changes of positions in training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from zoo.attention.tokens import Tokens
from zoo.errors import OptionError
from zoo.options import Between

CONVENTIONS = ("index", "fraction", "growing", "symmetric", "interpolated", "unit")
KNOWN = "zoo_known_on_host"
"""Attribute of a tensor that holds what the host knows of its numbers."""


def grid(sizes: Sequence[int], like: Tensor) -> Tensor:
    """Make the indices [N, P] of a grid, row-major: (row, column) or (frame, row, column)."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    axes = [torch.arange(size, device=like.device, dtype=dtype) for size in sizes]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)


def grid_shape(sizes: Sequence[int], like: Tensor) -> Tensor:
    """Make the size of a grid along each axis, [1, 1, P]."""
    # `new_full` keeps a variable size variable under torch.export.
    return _note(fill_numbers(sizes, like.new_empty(1, 1, 0)), tuple(sizes))


def fill_numbers(numbers: Sequence[float], like: Tensor) -> Tensor:
    """Make a tensor [.., P] of a few numbers, with the dtype, device and other axes of `like`.

    The numbers are arguments of operations of the device. A tensor of the host would be copied, for
    which the host waits until the device has done all that it was given before.
    """
    return torch.stack([like.new_full(like.shape[:-1], number) for number in numbers], dim=-1)


def set_known_range(pos: Tensor, first: float, last: float) -> None:
    """Note on coordinates of one axis that none is before `first` or after `last`.

    Whoever makes coordinates knows this on the host. An encoding that has an end then needs to read
    them, for which the host waits, only if the range does not answer already.
    """
    _note(pos, (first, last))


def get_known_range(pos: Tensor) -> tuple[float, float] | None:
    """Return bounds of coordinates of one axis, which may be wide; None if they must be read."""
    return getattr(pos, KNOWN, None)


def get_known_sizes(grid_size: Tensor) -> tuple[int, ...] | None:
    """Return the numbers of a tensor of `grid_shape`; None if they must be read."""
    return getattr(grid_size, KNOWN, None)


def _note(tensor: Tensor, sizes: tuple[float, ...]) -> Tensor:
    # An operation on the tensor makes another one, without the note: none can be out of date.
    # A compiler has no need of it, since under one nothing is read.
    if not torch.compiler.is_compiling():
        setattr(tensor, KNOWN, sizes)
    return tensor


def apply_convention(tokens: Tokens, convention: str, length: Sequence[int] | None) -> Tokens:
    """Set the coordinates `pos` of tokens to their index under a convention.

    With index i, grid size n and training size n0:

    - index: i
    - fraction: (i + 1/2) / n
    - symmetric: 2 (i + 1/2) / n - 1
    - growing: the i-th of n numbers from 0 to n / n0
    - interpolated: i min(1, n0 / n), an index that never leaves the range seen in training
    - unit: the i-th of n numbers from 0 to 1, which equals growing at the training size

    Args:
        tokens: The tokens. Those without a grid size already have coordinates, which are kept.
        convention: One of `CONVENTIONS`.
        length: Training size n0 along each axis, in tokens.

    Raises:
        OptionError: The convention needs `length`.
    """
    index, size = tokens.index, tokens.grid_size
    if size is None:
        return tokens
    if convention == "index":
        return tokens if tokens.pos is index else tokens.replace(pos=index)

    if convention in ("growing", "interpolated"):
        trained = fill_numbers(
            _require_length(length, convention, "coordinates"), size.new_empty(0)
        )
        if convention == "growing":
            pos = index * size / ((size - 1).clamp(min=1) * trained)
        else:
            pos = index * (trained / size).clamp(max=1)
    elif convention == "unit":
        pos = index / (size - 1).clamp(min=1)
    else:
        pos = (index + 0.5) / size
        pos = 2 * pos - 1 if convention == "symmetric" else pos
    return tokens.replace(pos=pos, consecutive=False)


def spacing(tokens: Tokens, convention: str, length: Sequence[int] | None) -> Tensor:
    """Compute the distance between neighbours under a convention, [1|B, 1|N, P].

    It is 1 for index and 2 / n for symmetric. For tokens without a grid size, n is `length`.

    Raises:
        OptionError: The convention needs `length`.
    """
    if convention == "index":
        return torch.ones_like(tokens.pos[:1, :1])
    size = tokens.grid_size
    if size is None:
        trained = _require_length(length, convention, "length")
        size = grid_shape(trained, tokens.pos)
    # All conventions are linear in the index, so any two neighbours have the same distance.
    at_zero = tokens.replace(index=torch.zeros_like(tokens.index), grid_size=size)
    at_one = tokens.replace(index=torch.ones_like(tokens.index), grid_size=size)
    high, low = (
        apply_convention(neighbour, convention, length).pos for neighbour in (at_one, at_zero)
    )
    return high - low


def _require_length(length: Sequence[int] | None, convention: str, key: str) -> Sequence[int]:
    if length is None:
        message = f"{convention} coordinates need the training size: Dims(length=...)"
        raise OptionError(key, message)
    return length


@dataclass(frozen=True, kw_only=True)
class PositionAugmentation:
    """Random changes of positions in training: jitter, then aspect, stretch and shift.

    Rows and columns move; the frames of a video do not. The changes are those of ComRoPE
    (arXiv:2506.03737), CAPE (arXiv:2106.03143) and DINOv3 (arXiv:2508.10104). DINOv3 calls stretch
    "rescale" and aspect "jitter".
    """

    jitter: Annotated[float, Between(0)] = 0.0
    """Standard deviation, in patches, of the movement of each token within its patch."""

    stretch: Annotated[float, Between(1)] = 1.0
    """Largest factor by which a grid grows or shrinks about its centre."""

    aspect: Annotated[float, Between(1)] = 1.0
    """Largest factor by which each axis grows or shrinks independently."""

    shift: Annotated[float, Between(0)] = 0.0
    """Largest shift of a grid along each axis, in patches."""

    per_sample: bool = False
    """Draw for each sample. Otherwise all samples of a batch share one draw, so that rotations are
    computed once."""

    def __post_init__(self) -> None:
        if self.per_sample and self.is_identity:
            message = "no change is enabled; set jitter, stretch, aspect or shift"
            raise OptionError("per_sample", message)

    @property
    def is_identity(self) -> bool:
        """True if positions never change."""
        return not self.jitter and self.stretch == self.aspect == 1 and not self.shift

    def __call__(self, index: Tensor, samples: int = 1, centre: Tensor | None = None) -> Tensor:
        """Change positions [N, P] or [1|B, N, P]; with `per_sample` the result is [B, N, P].

        Args:
            index: Grid indices, in patches.
            samples: Number of samples B.
            centre: The centre of each token's grid [1|B, N, P]. None: that of all positions of a
                sample.
        """
        if self.is_identity:
            return index
        if self.per_sample:
            index = index.expand(samples, *index.shape[-2:])

        # The first of three axes is time.
        time_axes = 1 if index.shape[-1] == 3 else 0
        frames, moving = index[..., :time_axes], index[..., time_axes:]
        if centre is not None:
            centre = centre[..., time_axes:]
        if self.jitter:
            moving = jitter(moving, [self.jitter] * moving.shape[-1])
        if self.aspect > 1:
            moving = stretch(moving, self.aspect, self.per_sample, moving.shape[-1], centre)
        if self.stretch > 1:
            moving = stretch(moving, self.stretch, self.per_sample, centre=centre)
        if self.shift:
            moving = shift(moving, self.shift, self.per_sample)
        return torch.cat([frames, moving], dim=-1)

    def find_extremes(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions [N, P] moved as far down, and as far up, as any draw moves them."""
        time_axes = 1 if index.shape[-1] == 3 else 0
        frames, moving = index[..., :time_axes], index[..., time_axes:]
        centre = (moving.amin(-2, keepdim=True) + moving.amax(-2, keepdim=True)) / 2
        factor = self.aspect * self.stretch
        most = factor * (0.5 if self.jitter else 0.0) + self.shift
        stretched = centre + (moving - centre) * factor
        down, up = (torch.cat([frames, stretched + step], dim=-1) for step in (-most, most))
        return down, up

    def widen_range(self, first: float, last: float) -> tuple[float, float]:
        """Return the range of indices on one axis that lie from `first` to `last` before a draw."""
        factor = self.aspect * self.stretch
        most = factor * (0.5 if self.jitter else 0.0) + self.shift
        margin = (last - first) / 2 * (factor - 1) + most
        return first - margin, last + margin


def jitter(index: Tensor, sigma: Sequence[float]) -> Tensor:
    """Move each index by a draw of N(0, sigma^2) truncated to its patch (-1/2, 1/2), as in ComRoPE.

    The distribution is truncated, not clamped: no draw accumulates at an edge.

    Args:
        index: Grid indices [.., P].
        sigma: Standard deviation along each axis, in patches.
    """
    # Inverse transform sampling of the truncated normal: its quantile function is
    # sigma sqrt(2) erfinv(u P(|draw| < 1/2)) for u uniform in (-1, 1).
    widths = fill_numbers(sigma, index.new_empty(0))  # [P]
    scaled = 0.5 / (widths.clamp(min=1e-6) * math.sqrt(2))
    edge = torch.erf(scaled).clamp(max=1 - 1e-6)  # P(|draw| < 1/2)
    uniform = torch.rand_like(index) * 2 - 1
    draw = torch.erfinv(uniform * edge) * widths * math.sqrt(2)
    return index + draw.clamp(-0.5, 0.5)  # the clamp only catches rounding at the very edge


def stretch(
    index: Tensor,
    largest: float,
    per_sample: bool = False,
    factors: int = 1,
    centre: Tensor | None = None,
) -> Tensor:
    """Stretch indices about their centre by exp(U(-log largest, log largest)).

    Args:
        index: Grid indices [.., N, P].
        largest: Largest factor.
        per_sample: Draw for each sample of [B, N, P]; otherwise all samples share one draw.
        factors: Number of factors to draw: 1 for all axes together, or P.
        centre: The centre [.., N, P]. None: that of the indices.
    """
    if centre is None:
        centre = (index.amin(-2, keepdim=True) + index.amax(-2, keepdim=True)) / 2
    shape = (*index.shape[:-2], 1, factors) if per_sample else (factors,)
    draw = torch.rand(shape, dtype=index.dtype, device=index.device) * 2 - 1
    return centre + (index - centre) * torch.exp(draw * math.log(largest))


def shift(index: Tensor, largest: float, per_sample: bool = False) -> Tensor:
    """Shift indices along each axis by one draw of U(-largest, largest) patches.

    Args:
        index: Grid indices [.., N, P].
        largest: Largest shift in patches.
        per_sample: Draw for each sample of [B, N, P]; otherwise all samples share one draw.
    """
    shape = (*index.shape[:-2], 1, index.shape[-1]) if per_sample else index.shape[-1:]
    draw = torch.rand(shape, dtype=index.dtype, device=index.device) * 2 - 1
    return index + draw * largest
