"""RoPE along the axes of images and clips (Heo et al. 2024, arXiv:2403.13298; arXiv:2303.11331)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention import POINT_AXES, Dims
from zoo.encodings.common.frequencies import (
    axis_frequencies,
    check_head_dim,
    choose_wavelengths,
    compute_angles,
    float64_like,
    refuse_with_wavelengths,
)
from zoo.encodings.common.rotation import Rotary, cos_sin
from zoo.encodings.common.scaling import (
    GridScaling,
    check_scaled_coordinates,
    extend_grid,
    refuse_scaled_points,
    refuse_vanishing,
    scale_frequencies,
)
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register

T = TypeVar("T")
BASE = 100.0


@register
class RoPEAxial(Rotary):
    """pairs (2k, 2k+1) of q and k rotate by p_a w_k, w_k = base^(-2Pk/K), a group of pairs per axis

    For images the first half of the pairs rotates with the column and the second with the row, as
    in published checkpoints. For clips there are three nearly equal groups: frame, row and column.
    With `unit` turn, angles are 2 pi p_a w_k, as in DINOv3 (Simeoni et al. 2025, arXiv:2508.10104)
    with symmetric coordinates. It requires coordinates that are not integers. With
    `t_min` and `t_max`, one number or one for each axis, the wavelengths of each group grow
    geometrically from the one to the other, in units of the coordinates. `scaling` adapts the
    frequencies of each axis to larger grids than in training.

    Args:
        base: The frequencies of an axis are base^(-2Pk/K).
        unit: Whether coordinates times frequencies are radians or full turns.
        t_min: Shortest wavelength of all axes or of each; with t_max, in place of base.
        t_max: Longest wavelength of all axes or of each.
        scaling: Rule for grids larger than in training.
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "rotation"
    axes = (2, 3)
    point_axes = POINT_AXES[1:]
    axes_reason = "rope is its form for text"

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = BASE,
        unit: Literal["radian", "turn"] = "radian",
        t_min: Annotated[float, Between(1e-9)]
        | tuple[Annotated[float, Between(1e-9)], ...]
        | None = None,
        t_max: Annotated[float, Between(1e-9)]
        | tuple[Annotated[float, Between(1e-9)], ...]
        | None = None,
        scaling: GridScaling | None = None,
        turn_values: bool = False,
    ) -> None:
        super().__init__(dims)
        self.turn_values = turn_values
        check_head_dim(self)
        if scaling is not None:
            refuse_scaled_points(self)
        self.wavelengths = choose_wavelengths(t_min, t_max, dims.axes)
        if self.wavelengths:
            refuse_with_wavelengths(
                self, base=base != BASE, unit=unit != "radian", scaling=scaling is not None
            )
        self.base, self.unit = base, 2 * math.pi if unit == "turn" else 1.0
        self.scaling = scaling
        self.by_axis = () if scaling is None else scaling.split(dims)
        # A factor of cos and sin multiplies every query and key, at position 0 too.
        self.identity_at_zero = all(axis_scaling.sharpening == 1 for axis_scaling in self.by_axis)
        if turn_values:
            refuse_vanishing(self.by_axis)

    def check_options(self) -> None:
        if self.scaling is not None:
            check_scaled_coordinates(self, self.scaling)
        counts = self.coordinates in ("index", "interpolated") and not self.dims.points
        if self.unit != 1 and counts:
            message = f"unit turn rotates the fastest pairs by whole turns at {self.coordinates}"
            hint = "choose coordinates: symmetric, or unit: radian"
            raise OptionError("unit", f"{message} coordinates, so not at all; {hint}")

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        if self.scaling is not None or self.wavelengths:
            return {}
        scaled = extend_grid(self.dims, factors, ("ntk", "yarn"))
        return {"linear": {"coordinates": "interpolated"}, **scaled}

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        waves = self.wave_vectors(float64_like(pos))
        table = cos_sin(compute_angles(pos, waves))  # [1|B, 1, N, K/2, 2]
        return (table if self.identity_at_zero else self._sharpen(table),)

    def turn(self, x: Tensor, *tables: Tensor, back: bool = False) -> Tensor:
        if not self.identity_at_zero:
            tables = tuple(F.normalize(table, dim=-1) for table in tables)
        return super().turn(x, *tables, back=back)

    def wave_vectors(self, like: Tensor) -> Tensor:
        groups = axis_frequencies(self.dims, self.base, like)
        if self.wavelengths:
            groups = [
                wavelengths.make_frequencies(len(waves), like)
                for wavelengths, waves in zip(self._by_group(self.wavelengths), groups, strict=True)
            ]
        if self.by_axis:
            width = self.dims.head_dim / self.dims.axes
            groups = [
                scale_frequencies(rule, self.base, width, like, len(waves))
                for rule, waves in zip(self._by_group(self.by_axis), groups, strict=True)
            ]
        # The columns of each group are zero except on its axis: [P, K/2].
        waves = self.unit * torch.block_diag(*groups)
        return (waves.flip(0) if self.dims.axes == 2 else waves)[:, None]  # [P, 1, K/2]

    def _by_group(self, values: Sequence[T]) -> Sequence[T]:
        """Return values of the axes in the order of the groups of pairs."""
        return values[::-1] if self.dims.axes == 2 else values

    def _sharpen(self, table: Tensor) -> Tensor:
        """Multiply cos and sin [.., K/2, 2] of each group by the factor of its axis."""
        factors = self._by_group([axis_scaling.sharpening for axis_scaling in self.by_axis])
        groups = table.tensor_split(self.dims.axes, dim=-2)
        return torch.cat([f * part for f, part in zip(factors, groups, strict=True)], dim=-2)
