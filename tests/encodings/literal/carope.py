"""CARoPE: pairs rotate by the sum of f_l^t, f = 1 / (softplus(frequency(x)) + 1)."""

from __future__ import annotations

from torch import Tensor

from literal.call import Call
from literal.functions import softplus
from literal.token_angles import score_token_angles
from zoo.attention.encoding import Encoding


def carope(encoding: Encoding, call: Call) -> Tensor:
    weight, bias = encoding.frequency.weight, encoding.frequency.bias

    def angle(b: int, h: int, t: int, n: int) -> Tensor:
        return (1 / (softplus(call.x[b, n] @ weight[h] + bias[h]) + 1)) ** t

    return score_token_angles(call, angle)
