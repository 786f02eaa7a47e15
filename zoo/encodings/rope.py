"""Rotary position embedding (RoPE; Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from torch import Tensor

from zoo.attention.encoding import Dims
from zoo.encodings.rotation import Rotary, check_pairs, circle, ladders
from zoo.registry import register


@register
class RoPE(Rotary):
    """pairs (2k, 2k+1) of q and k turn by p w_k, w_k = base^(-2k/K)"""

    def __init__(self, dims: Dims, *, base: float = 10000.0) -> None:
        super().__init__(dims)
        check_pairs(dims)
        self.base = base

    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        (ladder,) = ladders(self.dims, self.base, pos)
        return (circle(pos[:, None] * ladder),)  # [1|B, 1, N, K/2, 2]
