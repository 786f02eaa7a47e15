"""T5: a learned bias for each bucket of distances, exact at first, then logarithmic."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from literal.call import Bias
from zoo.attention.encoding import Encoding


def bucket(distance: int, causal: bool, num_buckets: int = 32, max_distance: int = 128) -> int:
    """Return the bucket of i - j."""
    half = num_buckets if causal else num_buckets // 2
    base = half if not causal and distance < 0 else 0
    d = max(distance, 0) if causal else abs(distance)
    exact = half // 2
    if d < exact:
        return base + d
    part = (
        torch.tensor(d / exact).log() / math.log(max_distance / exact) * (half - exact)
    )  # in float32
    return base + min(half - 1, exact + math.floor(part))


def t5(encoding: Encoding, causal: bool, num_buckets: int = 32, max_distance: int = 128) -> Bias:
    return lambda h, i, j: encoding.table[bucket(int(i - j), causal, num_buckets, max_distance), h]


def t5_on_grid(table: Tensor, pos: Tensor) -> Tensor:
    """Return biases [H, N, N] for whole coordinates [N, P], of tables [P, buckets, H]."""
    biases = table.new_zeros(table.shape[2], len(pos), len(pos))
    for (i, p), (j, r), a in product(enumerate(pos), enumerate(pos), range(pos.shape[1])):
        biases[:, i, j] += table[a, bucket(int(p[a] - r[a]), False, table.shape[1], 128)]
    return biases
