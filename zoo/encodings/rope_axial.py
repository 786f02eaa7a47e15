"""RoPE on the axes of an image or a clip (Heo et al. 2024, arXiv:2403.13298; Fang et al. 2023, arXiv:2303.11331)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from zoo.attention import Dims
from zoo.encodings.common.frequencies import axis_frequencies, check_pairs, compute_angles
from zoo.encodings.common.rotation import Rotary, cos_sin
from zoo.registry import Between, register


@register
class RoPEAxial(Rotary):
    """pairs (2k, 2k+1) of q and k turn by p_a w_k, w_k = base^(-2Pk/K), a part of the pairs for each axis a

    Images: the first half of the pairs turns with the column, the second with the row, as published checkpoints have it.
    Clips: three nearly equal parts for frame, row and column, of which none need divide them evenly. `unit` turn: angles are
    2 pi p_a w_k, as DINOv3 has them (Simeoni et al. 2025, arXiv:2508.10104), with symmetric coordinates.
    """

    axes = (2, 3)
    axes_reason = "a text has one axis, and is for rope"

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 100.0,
        unit: Literal["radian", "turn"] = "radian",
    ) -> None:
        super().__init__(dims)
        check_pairs(dims)
        self.base, self.unit = base, 2 * math.pi if unit == "turn" else 1.0

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {"linear": {"coordinates": "interpolated"}}

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return (cos_sin(compute_angles(pos, self.wave_vectors(pos))),)  # [1|B, 1, N, K/2, 2]

    def wave_vectors(self, like: Tensor) -> Tensor:
        waves = self.unit * torch.block_diag(
            *axis_frequencies(self.dims, self.base, like)
        )  # [P, K/2]
        return (waves.flip(0) if self.dims.axes == 2 else waves)[:, None]
