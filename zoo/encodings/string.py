"""Learned wave vectors in a learned basis (STRING; Schenck et al. 2025, arXiv:2502.02562)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import torch
from torch import Tensor, nn

from zoo.attention import POINT_AXES, Dims, upcast
from zoo.encodings.common.frequencies import (
    adapt_axes,
    axis_frequencies,
    check_head_dim,
    compute_angles,
    float64_like,
)
from zoo.encodings.common.rotation import Rotary, rotate_back, rotate_pairs, rotation_tables
from zoo.encodings.common.spectral_rotation import (
    cayley_basis,
    change_basis,
    fourier_basis,
    from_upper_triangle,
    sine_columns,
)
from zoo.errors import OptionError
from zoo.options import Between, ByAxes
from zoo.registry import register

BASES = ByAxes((10000.0, 100.0, 100.0))


@register
class String(Rotary):
    """pairs (2i, 2i+1) of Q q and Q k rotate by sum_a p_a frequencies[a, i], per head

    Q = (I - S) (I + S)^-1 with S = U - U^T skew-symmetric; `skew` is the strict upper triangle U,
    row-major. With `kind` circulant, q and k rotate by exp(sum_a p_a (C_a - C_a^T)), where C_a is
    the circulant matrix whose first column is circulants[a]. Q is then the discrete Fourier
    transform, and plane k of K/2 - 1 rotates by 2 Im fft(circulants[a])_k, which depends only on
    the odd part of the column. Both kinds start as RoPE along the axes: a group of planes for each
    axis, with frequencies base^(-2Pk/K) and, for Cayley, Q = I. For text the default base is that
    of RoPE.

    Args:
        kind: How Q is made: by the Cayley transform or by circulant matrices.
        base: The frequencies at the start are base^(-2Pk/K); that of RoPE on texts.
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "rotation"
    shared = False
    axes = (1, 2, 3)
    point_axes = POINT_AXES

    def __init__(
        self,
        dims: Dims,
        *,
        kind: Literal["cayley", "circulant"] = "cayley",
        base: Annotated[float, Between(1), BASES] | None = None,
        turn_values: bool = False,
    ) -> None:
        super().__init__(dims)
        self.turn_values = turn_values
        check_head_dim(self)
        base = BASES.choose(base, dims.axes)
        self.kind, size, heads = kind, dims.head_dim, dims.num_kv_heads
        planes = size // 2 if kind == "cayley" else size // 2 - 1
        if planes < dims.axes:
            needed = f"needs a head dim of {2 * dims.axes + 2}, not {size}"
            raise OptionError("kind", f"circulant on {dims.axes} axes {needed}")
        frequencies = torch.block_diag(*axis_frequencies(dims, base, torch.zeros(0), planes))
        waves = frequencies[:, None].repeat(1, heads, 1)  # [P, G, planes]
        if kind == "cayley":
            self.frequencies = nn.Parameter(waves)
            self.skew = nn.Parameter(torch.zeros(heads, size * (size - 1) // 2))
        else:
            # Columns of circulants whose planes rotate by the frequencies of RoPE.
            columns = waves @ sine_columns(fourier_basis(size, waves)).mT
            self.circulants = nn.Parameter(columns / (2 * size) ** 0.5)  # [P, G, K]

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {"linear": {"coordinates": "interpolated"}} if self.dims.axes > 1 else {}

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        return value if name == "skew" else adapt_axes(value, source.dims, self.dims)

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        waves = self.wave_vectors(float64_like(pos))
        tables = rotation_tables(compute_angles(pos, waves))
        if self.kind == "cayley":
            skew = from_upper_triangle(upcast(self.skew), self.dims.head_dim)
            return cayley_basis(skew), *tables
        basis = fourier_basis(self.dims.head_dim, upcast(self.circulants))
        return basis.expand(self.dims.num_kv_heads, -1, -1), *tables

    def wave_vectors(self, like: Tensor) -> Tensor:
        if self.kind == "cayley":
            return upcast(self.frequencies)
        columns, size = self.circulants.to(like), self.dims.head_dim
        return columns @ sine_columns(fourier_basis(size, columns)) * (2 * size) ** 0.5

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        # The left Q^T would cancel between query and key.
        basis, *angles = tables
        return rotate_pairs(change_basis(x, basis[:, None]), *angles)

    def turn(self, x: Tensor, *tables: Tensor, back: bool = False) -> Tensor:
        basis, *angles = tables
        return (
            change_basis(rotate_back(x, *angles), basis.mT[:, None])
            if back
            else self.rotate(x, *tables)
        )
