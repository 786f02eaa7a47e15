"""ALiBi: -m_h |p_i - p_j|, m_h = 2^(-8h/H); on a grid with distances along its axes or straight."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from literal.call import Bias
from zoo.attention.encoding import Encoding


def slope(h: int, heads: int) -> float:
    below = 2 ** math.floor(math.log2(heads))
    if h < below:
        return float(2 ** (-8 * (h + 1) / below))
    odd = 2 * (h - below) + 1  # the first, third, fifth ... slope of twice as many heads
    return float(2 ** (-8 * odd / (2 * below)))


def alibi(encoding: Encoding) -> Bias:
    return lambda h, i, j: -slope(h, encoding.dims.heads) * (i - j).abs()


def manhattan(p: Tensor, r: Tensor) -> float:
    return sum(abs(float(a - b)) for a, b in zip(p, r, strict=True))


def euclidean(p: Tensor, r: Tensor) -> float:
    return math.dist(p.tolist(), r.tolist())


def alibi_on_grid(heads: int, pos: Tensor, distance=manhattan) -> Tensor:
    """Return biases [H, N, N] for coordinates [N, P] and heads that are a power of two."""
    return torch.tensor(
        [
            [[-(2 ** (-8 * h / heads)) * distance(p, r) for r in pos] for p in pos]
            for h in range(1, heads + 1)
        ],
        dtype=pos.dtype,
    )
