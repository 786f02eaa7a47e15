"""GRAPE-AP: q_i.k_j / sqrt(K) + m_h sum_{l=j+1..i} log sigmoid(P_i . R_l P'_l / size)."""

from __future__ import annotations

import torch
from torch import Tensor

from literal.alibi import slope
from literal.call import Call, make_product, score_pairs
from literal.functions import sigmoid
from zoo.attention.encoding import Encoding


def grape_ap(encoding: Encoding, call: Call, size: int = 8) -> Tensor:
    heads, plain = call.q.shape[1], make_product(call)

    def project(b: int, h: int, n: int) -> Tensor:
        return encoding.path.weight[h * size : (h + 1) * size] @ call.x[b, n]

    def rotate_edge(b: int, h: int, n: int) -> Tensor:
        p, a = project(b, h, n), call.pos[n]
        p = p / ((p @ p) / size + 1e-6).sqrt()
        pairs = [(x * a.cos() - y * a.sin(), x * a.sin() + y * a.cos()) for x, y in p.view(-1, 2)]
        return torch.stack([side for pair in pairs for side in pair])

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        logs = [
            sigmoid(project(b, h, i) @ rotate_edge(b, h, n) / size).log()
            for n in range(j + 1, i + 1)
        ]
        return plain(b, h, i, j) + slope(h, heads) * sum(logs, torch.zeros((), dtype=torch.float64))

    return score_pairs(call, score)
