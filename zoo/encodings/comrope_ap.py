"""Commuting rotations, one axis per block (ComRoPE-AP; Yu et al. 2025, arXiv:2506.03737)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from zoo.attention import POINT_AXES, Dims
from zoo.encodings.common.rotation import Rotary
from zoo.encodings.common.spectral_rotation import (
    rotate_back_by_spectrum,
    rotate_by_spectrum,
    skew_part,
    spectral_tables,
    spectrum,
)
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class ComRoPEAP(Rotary):
    """block j of b channels of q and k rotates by exp(p_(j mod P) S_j)

    S = generators - generators^T.

    Args:
        block: Channels b of a block.
        std: Standard deviation of the initial generators.
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "rotation"
    shared = False
    axes = (1, 2, 3)
    point_axes = POINT_AXES
    coordinates = "fraction"

    def __init__(
        self,
        dims: Dims,
        *,
        block: int = 8,
        std: Annotated[float, Between(0, 1e6)] = 1.0,
        turn_values: bool = False,
    ) -> None:
        super().__init__(dims)
        self.turn_values = turn_values
        if block < 2 or block % 2 or dims.head_dim % (block * dims.axes):
            needed = f"{dims.axes} blocks (one per axis) must divide the head dim {dims.head_dim}"
            raise OptionError("block", f"block {block} must be even, and {needed}")
        shape = (dims.num_kv_heads, dims.head_dim // block, block, block)
        self.generators = nn.Parameter(torch.randn(shape) * std)  # [G, m, b, b]

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        # Fractions of an image never leave the range seen in training.
        return {"linear": {}} if self.dims.axes > 1 else {}

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return spectral_tables(skew_part(self.generators), pos, self._scales(pos))

    def wave_vectors(self, like: Tensor) -> Tensor:
        frequencies = spectrum(skew_part(self.generators))[0].to(like)  # [G, m, b/2]
        return (self._scales(frequencies)[..., None] * frequencies).flatten(-2)

    def _scales(self, like: Tensor) -> Tensor:
        """Return 1 where a block rotates with an axis and 0 elsewhere, [P, 1, m]."""
        axis = self._axis_of_block(self.generators.shape[1])
        axes = torch.arange(self.dims.axes, device=axis.device)[:, None, None]
        return (axis == axes).to(like)

    def _axis_of_block(self, blocks: int) -> Tensor:
        return torch.arange(blocks, device=self.generators.device) % self.dims.axes

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        return rotate_by_spectrum(x, *tables)

    def turn(self, x: Tensor, *tables: Tensor, back: bool = False) -> Tensor:
        return (rotate_back_by_spectrum if back else rotate_by_spectrum)(x, *tables)
