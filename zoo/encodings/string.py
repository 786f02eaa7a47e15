"""Every rotation that is relative: wave vectors and a basis, both learned (STRING; Schenck et al. 2025, arXiv:2502.02562)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import torch
from torch import Tensor, nn

from zoo.attention import Dims, upcast
from zoo.encodings.common.frequencies import (
    adapt_axes,
    axis_frequencies,
    check_pairs,
    compute_angles,
)
from zoo.encodings.common.rotation import Rotary, rotate_pairs, rotation_tables
from zoo.encodings.common.skew import (
    cayley_basis,
    change_basis,
    fourier_basis,
    from_upper_triangle,
    sine_columns,
)
from zoo.errors import OptionError
from zoo.registry import Between, register


@register
class String(Rotary):
    """pairs (2i, 2i+1) of Q q and Q k turn by sum_a p_a frequencies[a, i], Q = (I - S) (I + S)^-1, S skew-symmetric, per head

    `skew` is the strict upper triangle U of S = U - U^T, row-major. `kind` circulant: q and k turn by exp(sum_a p_a (C_a -
    C_a^T)), C_a the circulant matrix whose first column is circulants[a]: Q is the discrete Fourier transform, and plane k of
    K/2 - 1 turns by 2 Im fft(circulants[a])_k. That is the odd part of a column: its even part learns nothing.
    Both start as RoPE on the axes, a part of the planes for each, base^(-2Pk/K); Q of Cayley is the identity then.
    """

    shared = False
    axes = (1, 2, 3)

    def __init__(
        self,
        dims: Dims,
        *,
        kind: Literal["cayley", "circulant"] = "cayley",
        base: Annotated[float, Between(1)] = 100.0,
    ) -> None:
        super().__init__(dims)
        check_pairs(dims)
        self.kind, size = kind, dims.head_dim
        planes = size // 2 if kind == "cayley" else size // 2 - 1
        if planes < dims.axes:
            raise OptionError(
                "kind",
                f"circulant on {dims.axes} axes needs a head size of {2 * dims.axes + 2}, not {size}",
            )
        ladder = torch.block_diag(*axis_frequencies(dims, base, torch.zeros(0), planes))
        waves = ladder[:, None].repeat(1, dims.num_kv_heads, 1)  # [P, G, planes]
        if kind == "cayley":
            self.frequencies = nn.Parameter(waves)
            self.skew = nn.Parameter(torch.zeros(dims.num_kv_heads, size * (size - 1) // 2))
        else:
            columns = waves @ sine_columns(fourier_basis(size, waves)).mT
            self.circulants = nn.Parameter(columns / (2 * size) ** 0.5)  # [P, G, K]

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        return value if name == "skew" else adapt_axes(value, source.dims, self.dims)

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        turns = rotation_tables(compute_angles(pos, self.wave_vectors(pos)))
        if self.kind == "cayley":
            return cayley_basis(from_upper_triangle(upcast(self.skew), self.dims.head_dim)), *turns
        return fourier_basis(self.dims.head_dim, upcast(self.circulants)).expand(
            self.dims.num_kv_heads, -1, -1
        ), *turns

    def wave_vectors(self, like: Tensor) -> Tensor:
        if self.kind == "cayley":
            return upcast(self.frequencies)
        columns = upcast(self.circulants)
        return (
            columns
            @ sine_columns(fourier_basis(self.dims.head_dim, columns))
            * (2 * self.dims.head_dim) ** 0.5
        )

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        basis, *turns = tables
        return rotate_pairs(
            change_basis(x, basis[:, None]), *turns
        )  # the left Q cancels between query and key
