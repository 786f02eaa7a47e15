"""RoPE along the axes of images and clips (Heo et al. 2024, arXiv:2403.13298; arXiv:2303.11331)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from zoo.attention import Dims
from zoo.encodings.common.frequencies import (
    axis_frequencies,
    check_head_dim,
    compute_angles,
    float64_like,
)
from zoo.encodings.common.rotation import Rotary, cos_sin
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class RoPEAxial(Rotary):
    """pairs (2k, 2k+1) of q and k rotate by p_a w_k, w_k = base^(-2Pk/K), a group of pairs per axis

    For images the first half of the pairs rotates with the column and the second with the row, as
    in published checkpoints. For clips there are three nearly equal groups: frame, row and column.
    With `unit` turn, angles are 2 pi p_a w_k, as in DINOv3 (Simeoni et al. 2025, arXiv:2508.10104)
    with symmetric coordinates. It requires coordinates that are not integers.
    """

    axes = (2, 3)
    axes_reason = "rope is its form for text"

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 100.0,
        unit: Literal["radian", "turn"] = "radian",
    ) -> None:
        super().__init__(dims)
        check_head_dim(self)
        self.base, self.unit = base, 2 * math.pi if unit == "turn" else 1.0

    def check_options(self) -> None:
        if self.unit != 1 and self.coordinates in ("index", "interpolated"):
            problem = f"unit turn rotates the fastest pairs by whole turns at {self.coordinates}"
            remedy = "choose coordinates: symmetric, or unit: radian"
            raise OptionError("unit", f"rope_axial: {problem} coordinates, so not at all; {remedy}")

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {"linear": {"coordinates": "interpolated"}}

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        waves = self.wave_vectors(float64_like(pos))
        return (cos_sin(compute_angles(pos, waves)),)  # [1|B, 1, N, K/2, 2]

    def wave_vectors(self, like: Tensor) -> Tensor:
        # The columns of each group are zero except on its axis: [P, K/2].
        waves = self.unit * torch.block_diag(*axis_frequencies(self.dims, self.base, like))
        return (waves.flip(0) if self.dims.axes == 2 else waves)[:, None]  # [P, 1, K/2]
