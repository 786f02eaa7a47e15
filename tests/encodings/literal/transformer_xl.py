"""Transformer-XL: ((q_i + content).k_j + (q_i + place).(W R_{i-j})) / sqrt(K)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from literal.call import Call, score_pairs
from zoo.attention.encoding import Encoding


def transformer_xl(encoding: Encoding, call: Call, base: float = 10000.0) -> Tensor:
    width, size = encoding.dims.dim, call.q.shape[-1]

    def project_offset(r: Tensor) -> Tensor:
        angles = torch.stack([r * base ** (-2 * t / width) for t in range(width // 2)])
        return encoding.project.weight @ torch.cat([angles.sin(), angles.cos()])  # [H K]

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        q, k = call.query(b, h, i), call.k[b, h, j]
        r = project_offset(call.pos[i] - call.pos[j])[h * size : (h + 1) * size]
        return ((q + encoding.content[h]) @ k + (q + encoding.place[h]) @ r) / math.sqrt(size)

    return score_pairs(call, score)
