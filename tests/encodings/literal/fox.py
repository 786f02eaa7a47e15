"""FoX: q_i.k_j / sqrt(K) + sum_{l=j+1..i} log sigmoid(gate(x_l))."""

from __future__ import annotations

from torch import Tensor

from literal.call import Call, make_product, score_pairs
from literal.functions import sigmoid
from zoo.attention.encoding import Encoding


def fox(encoding: Encoding, call: Call) -> Tensor:
    plain, gate = make_product(call), encoding.gate

    def compute_gate(b: int, h: int, t: int) -> Tensor:
        return sigmoid(gate.weight[h] @ call.x[b, t] + gate.bias[h])

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        return plain(b, h, i, j) + sum(compute_gate(b, h, t).log() for t in range(j + 1, i + 1))

    return score_pairs(call, score)
