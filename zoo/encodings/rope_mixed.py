"""RoPE with learned wave vectors (RoPE-Mixed; Heo et al. 2024, arXiv:2403.13298)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn

from zoo.attention import POINT_AXES, Dims, Tokens, disable_autocast, upcast
from zoo.encodings.common.frequencies import (
    adapt_axes,
    axis_frequencies,
    check_head_dim,
    compute_angles,
)
from zoo.encodings.common.rotation import Rotary, rotate_pairs, rotation_tables
from zoo.encodings.common.scaling import (
    GridScaling,
    check_scaled_coordinates,
    extend_grid,
    refuse_scaled_points,
    stretch_wave_vectors,
)
from zoo.options import Between, ByAxes
from zoo.registry import register

BASES = ByAxes((10000.0, 10.0, 10.0))


@register
class RoPEMixed(Rotary):
    """pairs (2i, 2i+1) of q and k of head h rotate by sum_a p_a frequencies[a, h, i]

    Initially group a of P groups of pairs points along the a-th column of a random rotation, with
    magnitudes base^(-2Pk/K). The published base, 10, is for patches of images. For text the default
    is that of RoPE, since 10 would leave no slow pair. `scaling` adapts the wave vectors to larger
    grids than in training: each component as a frequency of RoPE along its axis.

    Args:
        base: The magnitudes at the start are base^(-2Pk/K); 10 on images, that of RoPE on texts.
        scaling: Rule for grids larger than in training.
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "rotation"
    shared = False
    siblings: tuple[RoPEMixed, ...] = ()
    axes = (1, 2, 3)
    point_axes = POINT_AXES

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1), BASES] | None = None,
        scaling: GridScaling | None = None,
        turn_values: bool = False,
    ) -> None:
        super().__init__(dims)
        self.turn_values = turn_values
        check_head_dim(self)
        self.base = base = BASES.choose(base, dims.axes)
        if scaling is not None:
            refuse_scaled_points(self)
        self.scaling = scaling
        self.by_axis = () if scaling is None else scaling.split(dims)
        # A pair turns along all axes; the axis that grew most sets its factor of cos and sin.
        self.sharpening = max(
            (axis_scaling.sharpening for axis_scaling in self.by_axis), default=1.0
        )
        self.identity_at_zero = self.sharpening == 1
        frames = _random_rotations(dims.num_kv_heads, dims.axes)  # [G, P, P]
        groups = []
        for axis, magnitudes in enumerate(axis_frequencies(dims, base, frames)):
            groups.append(frames[:, :, axis].T[..., None] * magnitudes)
        self.frequencies = nn.Parameter(torch.cat(groups, dim=-1))  # [P, G, K/2]

    def check_options(self) -> None:
        if self.scaling is not None:
            check_scaled_coordinates(self, self.scaling)

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        if self.dims.axes == 1 or self.scaling is not None:
            return {}
        scaled = extend_grid(self.dims, factors, ("ntk", "yarn"))
        return {"linear": {"coordinates": "interpolated"}, **scaled}

    def embed(self, tokens: Tokens) -> Tokens:
        # One operation makes the tables of all layers, which speeds up decoding. With gradients
        # each layer makes its own table, so that activation checkpointing can drop it.
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not self.siblings:
            return tokens
        waves = [layer.wave_vectors(tokens.pos) for layer in self.siblings]
        with disable_autocast(tokens.pos.device):
            (table,) = rotation_tables(compute_angles(tokens.pos, torch.cat(waves, dim=1)))
        names = [layer.layer_name for layer in self.siblings]
        parts = zip(table.split(self.dims.num_kv_heads, dim=1), strict=True)
        tables = dict(zip(names, parts, strict=True))
        return tokens.replace(shared_tables={**tokens.shared_tables, **tables})

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return rotation_tables(compute_angles(pos, self.wave_vectors(pos)))

    def wave_vectors(self, like: Tensor) -> Tensor:
        waves = upcast(self.frequencies)
        if not self.by_axis:
            return waves
        width = self.dims.head_dim / self.dims.axes
        return stretch_wave_vectors(self.by_axis, waves, self.base, width)

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        # The factor is not in the table, which may be made again of its angles.
        return rotate_pairs(x if self.sharpening == 1 else self.sharpening * x, *tables)

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        return adapt_axes(value, source.dims, self.dims)


def _random_rotations(count: int, axes: int) -> Tensor:
    """Draw uniform random rotations [count, P, P]; for two axes the angle is U[0, 2 pi)."""
    # QR of a normal matrix is uniform once the signs of R are fixed; the last column then makes
    # every determinant 1.
    q, r = torch.linalg.qr(torch.randn(count, axes, axes))
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    return torch.cat([q[..., :-1], q[..., -1:] * torch.linalg.det(q)[:, None, None]], dim=-1)
