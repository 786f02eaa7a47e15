"""Relative projection: q_i.k_j / sqrt(K) + r_i . P[:, p_i - p_j] within reach, r_i = clip(s (W x_i))."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from literal.call import Call, score_pairs
from zoo.attention.encoding import Encoding


def relative_projection(
    encoding: Encoding,
    call: Call,
    clip: float | None = None,
    log_scale: tuple[float, float] | None = None,
) -> Tensor:
    parameters, size = dict(encoding.named_parameters()), call.q.shape[-1]
    weight, profiles = parameters["query.weight"], parameters["profiles"]
    width, reach = profiles.shape

    def grow(i: int) -> float:
        if log_scale is None:
            return 1.0
        a, n = log_scale
        return 1 + a * math.log(max((float(call.pos[i]) + 1) / n, 1))

    def mix(b: int, h: int, i: int) -> Tensor:
        r = weight[h * width : (h + 1) * width] @ call.x[b, i]
        if clip is not None:
            r = parameters["scale"][h] * r
            r = r * min(1.0, clip / (math.sqrt(float(r @ r)) + 1e-6))
        return r * grow(i)

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        product = grow(i) * (call.query(b, h, i) @ call.k[b, h, j]) / math.sqrt(size)
        distance = int(call.pos[i] - call.pos[j])
        if not 0 <= distance < reach:
            return product
        return product + torch.dot(mix(b, h, i), profiles[:, distance])

    return score_pairs(call, score)
