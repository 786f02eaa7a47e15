"""PaTH: k_j^T H_{j+1} .. H_i q_i / sqrt(K), H_t = I - beta_t w_t w_t^T, multiplied one by one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from literal.call import Call, score_pairs
from zoo.attention.encoding import Encoding


def pass_key(key: Tensor, matrices: list[Tensor], j: int, i: int) -> Tensor:
    """Return k_j^T H_{j+1} .. H_i for one key [K]."""
    for t in range(j + 1, i + 1):
        key = key @ matrices[t]
    return key


def make_matrix(w: Tensor, beta: Tensor) -> Tensor:
    return torch.eye(len(w), dtype=w.dtype) - beta * torch.outer(w, w)


def make_matrices(encoding: Encoding, x: Tensor, head: int, size: int) -> list[Tensor]:
    """Return H_t of a key head for each token of states [M, D] of one document."""
    parameters = dict(encoding.named_parameters())
    first, second = parameters["direction.0.weight"], parameters["direction.1.weight"]
    own = slice(head * size, (head + 1) * size)
    matrices = []
    for t in range(len(x)):
        w = (second @ (first @ x[t]))[own]
        if "filter" in parameters:
            weights = parameters["filter"]
            steps = range(min(len(weights), t + 1))
            w = sum(weights[s, own] * (second @ (first @ x[t - s]))[own] for s in steps)
        z = parameters["strength.weight"][head] @ x[t] + parameters["strength.bias"][head]
        matrices.append(make_matrix(w / w.square().sum().sqrt(), 2 / (1 + torch.exp(-z))))
    return matrices


def path(encoding: Encoding, call: Call, sharing: int = 1) -> Tensor:
    """Compute scores [B, H, N, M]; `sharing` query heads in a row share a key head."""
    batch, heads, size = call.q.shape[0], call.q.shape[1], call.q.shape[-1]
    matrices = {
        (b, h): make_matrices(encoding, call.x[b], h // sharing, size)
        for b in range(batch)
        for h in range(heads)
    }

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        key = pass_key(call.k[b, h, j], matrices[b, h], j, i)
        return key @ call.query(b, h, i) / math.sqrt(size)

    return score_pairs(call, score)
