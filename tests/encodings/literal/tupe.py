"""TUPE: (q_i.k_j + query(norm(t_i)).key(norm(t_j))) / sqrt(2K), t = table[p]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from literal.call import Call, score_pairs
from zoo.attention.encoding import Encoding


def tupe(encoding: Encoding, call: Call, placed: Tensor | None = None) -> Tensor:
    size = call.q.shape[-1]

    def project_position(linear: torch.nn.Linear, p: Tensor, h: int) -> Tensor:
        row = encoding.table[int(p)]
        normal = (row - row.mean()) / (row.var(correction=0) + 1e-5).sqrt()
        normal = normal * encoding.norm.weight + encoding.norm.bias
        return (linear.weight @ normal + linear.bias)[h * size : (h + 1) * size]

    def score_positions(h: int, i: int, j: int) -> Tensor:
        if placed is not None and not placed[i]:
            return encoding.reset[0, h]
        if placed is not None and not placed[j]:
            return encoding.reset[1, h]
        one = project_position(encoding.query, call.pos[i], h)
        other = project_position(encoding.key, call.pos[j], h)
        return one @ other / math.sqrt(2 * size)

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        content = call.query(b, h, i) @ call.k[b, h, j] / math.sqrt(2 * size)
        return content + score_positions(h, i, j)

    return score_pairs(call, score)
