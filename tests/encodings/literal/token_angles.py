"""Scores of pairs of channels that rotate by angles that tokens add up."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from literal.call import Call, score_pairs

Angle = Callable[[int, int, int, int], Tensor]
"""(b, h, t, l) -> what token l adds to the angle of pair t."""


def score_token_angles(call: Call, angle: Angle, first: int = 1, last: int = 0) -> Tensor:
    """Compute scores of pairs of channels that rotate by the angles of tokens j + first .. i + last."""
    size, angle = call.q.shape[-1], cache(angle)

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        q, k, total = call.query(b, h, i), call.k[b, h, j], torch.zeros((), dtype=torch.float64)
        for t in range(size // 2):
            a = sum(
                (angle(b, h, t, n) for n in range(j + first, i + last + 1)),
                torch.zeros((), dtype=torch.float64),
            )
            (q1, q2), (k1, k2) = q[2 * t : 2 * t + 2], k[2 * t : 2 * t + 2]
            total = total + (q1 * k1 + q2 * k2) * a.cos() + (q1 * k2 - q2 * k1) * a.sin()
        return total / math.sqrt(size)

    return score_pairs(call, score)
