"""Sandwich: H/(8h) (sum_{k=1}^{width/2} cos((p_i - p_j) / 10000^(2k/width)) - width/2)."""

from __future__ import annotations

from torch import Tensor

from literal.call import Bias


def sandwich(heads: int, width: int = 128) -> Bias:
    def bias(h: int, i: Tensor, j: Tensor) -> Tensor:
        waves = sum(((i - j) / 10000 ** (2 * k / width)).cos() for k in range(1, width // 2 + 1))
        return (waves - width / 2) * heads / (8 * (h + 1))

    return bias
