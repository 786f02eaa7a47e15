"""CoPE: scores + z_i[p_ij], p_ij the sum of gates from the key to the query, at most the last row."""

from __future__ import annotations

import math

from torch import Tensor

from literal.call import Call, Score, score_pairs
from literal.functions import sigmoid
from zoo.attention.encoding import Encoding


def cope(encoding: Encoding, call: Call, before: Score, positions: int = 64) -> Tensor:
    """`before` is the score as it reaches the encoding."""

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        gates = [sigmoid(before(b, h, i, t)) for t in call.visible_keys(i) if j <= t <= i]
        p = min(float(sum(gates)), positions - 1.0)
        z = [call.query(b, h, i) @ row for row in encoding.table]
        rest = p - math.floor(p)
        return before(b, h, i, j) + rest * z[math.ceil(p)] + (1 - rest) * z[math.floor(p)]

    return score_pairs(call, score)
