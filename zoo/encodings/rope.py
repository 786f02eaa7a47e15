"""Rotary position embedding (RoPE; Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention.encoding import Dims
from zoo.encodings.rotation import Rotary, circle
from zoo.errors import Invalid
from zoo.registry import register


@register
class RoPE(Rotary):
    """pairs (2k, 2k+1) of q and k turn by p w_k, w_k = base^(-2k/K)"""

    def __init__(self, dims: Dims, *, base: float = 10000.0) -> None:
        super().__init__(dims)
        if dims.head % 2:
            raise Invalid("name", f"rope turns pairs of channels: the head size {dims.head} must be even")
        self.base = base

    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        ladder = torch.arange(0, self.dims.head, 2, device=pos.device, dtype=pos.dtype)
        return (circle(pos[:, None] * self.base ** (-ladder / self.dims.head)),)  # [1|B, 1, N, K/2, 2]
