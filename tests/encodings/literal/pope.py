"""PoPE: sum_c softplus(q_ic) softplus(k_jc) cos((p_j - p_i) w_c + phase_c) / sqrt(K)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from literal.call import Call, score_pairs
from literal.functions import softplus
from zoo.attention.encoding import Encoding


def pope(encoding: Encoding, call: Call, base: float = 10000.0) -> Tensor:
    size = call.q.shape[-1]

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for c in range(size):
            lengths = softplus(call.query(b, h, i)[c]) * softplus(call.k[b, h, j, c])
            angle = (call.pos[j] - call.pos[i]) * base ** (-c / size) + encoding.phase[h, c]
            total = total + lengths * angle.cos()
        return total / math.sqrt(size)

    return score_pairs(call, score)
