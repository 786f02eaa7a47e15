"""Shaw: q_i.(k_j + key_c) / sqrt(K), output + sum_j w_ij value_c, c the clipped p_j - p_i."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from literal.call import Call, score_pairs
from zoo.attention.encoding import Encoding


def find_row(call: Call, i: int, j: int, max_distance: int) -> int:
    return max(-max_distance, min(max_distance, int(call.pos[j] - call.pos[i]))) + max_distance


def shaw(encoding: Encoding, call: Call, max_distance: int = 16) -> Tensor:
    def score(b: int, h: int, i: int, j: int) -> Tensor:
        key = call.k[b, h, j] + encoding.key[find_row(call, i, j, max_distance)]
        return call.query(b, h, i) @ key / math.sqrt(len(key))

    return score_pairs(call, score)


def read_values(encoding: Encoding, call: Call, weights: Tensor, max_distance: int = 16) -> Tensor:
    """Return what is added to the output, [B, H, N, K]."""
    out = torch.zeros_like(call.q)
    for b, h, i, j in product(*map(range, weights.shape)):
        out[b, h, i] += (
            weights[b, h, i, j] * encoding.value[find_row(call, i + call.shift, j, max_distance)]
        )
    return out
