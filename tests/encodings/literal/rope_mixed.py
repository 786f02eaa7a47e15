"""RoPE-Mixed: pairs (2i, 2i+1) of head h rotate by sum_a p_a frequencies[a, h, i]."""

from __future__ import annotations

from torch import Tensor

from literal.rotation import rotate_planes
from zoo.attention.encoding import Encoding


def rope_mixed(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    waves = encoding.frequencies
    return rotate_planes(
        [sum(p[a] * waves[a, h, i] for a in range(len(p))) for i in range(size // 2)]
    )
