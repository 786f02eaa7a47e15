"""GRAPE-A: q_i.k_j / sqrt(K) - |p_i - p_j| m_h softplus(rate_h) softplus(u_h . k_j / sqrt(K))."""

from __future__ import annotations

import math

from torch import Tensor

from literal.alibi import slope
from literal.call import Call, make_product, score_pairs
from literal.functions import softplus
from zoo.attention.encoding import Encoding


def grape_a(encoding: Encoding, call: Call, by: str = "key") -> Tensor:
    heads, size, plain = call.q.shape[1], call.q.shape[-1], make_product(call)

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        q, k = call.query(b, h, i), call.k[b, h, j]
        u = encoding.gate[h] / encoding.gate[h].norm()
        chosen = softplus(u @ (q if by == "query" else k) / math.sqrt(size))
        if by == "both":
            v = encoding.query_gate[h] / encoding.query_gate[h].norm()
            chosen = chosen + softplus(v @ q / math.sqrt(size))
        rate = slope(h, heads) * softplus(encoding.rate[h]) * chosen
        return plain(b, h, i, j) - rate * (call.pos[i] - call.pos[j]).abs()

    return score_pairs(call, score)
