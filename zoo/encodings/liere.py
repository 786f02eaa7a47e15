"""Learned rotations that need not commute (LieRE; Ostmeier et al. 2024, arXiv:2406.10322)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn

from zoo.attention import POINT_AXES, AttentionCall, Dims, upcast
from zoo.encodings.common.frequencies import adapt_axes
from zoo.encodings.common.matrix_exp import rotate_blocks, skew_matrix_exp
from zoo.encodings.common.panels import Panels, angle_panels, commutator_panel, shift_change_panels
from zoo.encodings.common.rotation import Rotary
from zoo.encodings.common.spectral_rotation import from_upper_triangle
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class LieRE(Rotary):
    """each block of b channels of q and k rotates by exp(sum_a p_a A_a), A_a = U_a - U_a^T

    `generators` are the strict upper triangles U_a, row-major, initially uniform in [0, init_std).
    They do not commute, so a score depends on both positions, not only on their difference.
    Channels that do not fill a block stay unchanged.

    Args:
        block: Channels b of a block.
        init_std: Upper end of the initial generators.
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "rotation"
    shared = False
    shift_invariant = False
    axes = (1, 2, 3)
    point_axes = POINT_AXES
    coordinates = "growing"

    def __init__(
        self,
        dims: Dims,
        *,
        block: int = 8,
        init_std: Annotated[float, Between(0, 1e6)] = 2 * math.pi,
        turn_values: bool = False,
    ) -> None:
        super().__init__(dims)
        self.turn_values = turn_values
        if not 2 <= block <= dims.head_dim:
            needed = f"must be between 2 and the head dim {dims.head_dim}"
            raise OptionError("block", f"block {block} {needed}")
        self.block = block
        shape = (dims.axes, dims.num_kv_heads, dims.head_dim // block, block * (block - 1) // 2)
        self.generators = nn.Parameter(torch.rand(shape) * init_std)  # [P, G, m, b (b - 1) / 2]

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {"linear": {"coordinates": "unit"}} if self.dims.axes > 1 else {}

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        return adapt_axes(value, source.dims, self.dims)

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        # One exponential per token and block: all heads and blocks form one batch.
        skew = self._skew()  # [P, G, m, b, b]
        rotations = skew_matrix_exp(skew.flatten(1, 2), pos.flatten(0, 1))  # [1|B N, G m, b, b]
        rotations = rotations.unflatten(1, skew.shape[1:3]).unflatten(0, pos.shape[:2])
        return (rotations.transpose(1, 2),)  # [1|B, G, N, m, b, b]

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        return rotate_blocks(x, *tables)

    def turn(self, x: Tensor, *tables: Tensor, back: bool = False) -> Tensor:
        (rotations,) = tables
        return rotate_blocks(x, rotations.mT if back else rotations)

    def panels(self, call: AttentionCall) -> Panels:
        yield from angle_panels(self._skew(), self, call)
        if self.dims.axes > 1:
            yield commutator_panel(self._skew())
            yield from shift_change_panels(lambda pos: self.compute_rotation(pos)[0], self, call)

    def _skew(self) -> Tensor:
        """Return generators [P, G, m, b, b]."""
        return from_upper_triangle(upcast(self.generators), self.block)
