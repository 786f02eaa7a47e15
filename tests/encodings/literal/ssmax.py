"""SSMax: q_i.k_j / sqrt(K) * scale_h log n_i, counted query by query."""

from __future__ import annotations

import math

from torch import Tensor

from literal.call import Call, make_product, score_pairs
from zoo.attention.encoding import Encoding


def ssmax(encoding: Encoding, call: Call) -> Tensor:
    plain = make_product(call)

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        count = len(call.visible_keys(i))
        return plain(b, h, i, j) * encoding.scale[h] * math.log(count)

    return score_pairs(call, score)
