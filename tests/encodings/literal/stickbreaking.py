"""Stick-breaking: from the nearest key on, each takes the share sigmoid(score) of what is left."""

from __future__ import annotations

from itertools import product

from torch import Tensor

from literal.call import Call, make_product
from literal.functions import sigmoid


def stickbreaking(call: Call, inclusive: bool = False) -> tuple[Tensor, Tensor]:
    """Return weights [B, H, N, M], and what is left of each stick, [B, H, N]."""
    plain = make_product(call)
    left = call.q.new_ones(call.q.shape[:3])
    weights = call.q.new_zeros(*left.shape, call.k.shape[2])
    for b, h, row in product(*map(range, left.shape)):
        i = row + call.shift
        for j in reversed(call.visible_keys(i)):
            if j < i or inclusive:
                share = sigmoid(plain(b, h, i, j))
                weights[b, h, row, j] = share * left[b, h, row]
                left[b, h, row] *= 1 - share
    return weights, left
