"""PaTH, transcribed literally and slowly in float64: matrices multiplied one by one, pair by pair (arXiv:2505.16381)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from literal import biases as literal
from literal.biases import Call
from zoo.attention.encoding import Encoding


def passed(key: Tensor, matrices: list[Tensor], j: int, i: int) -> Tensor:
    """k_j^T H_{j+1} .. H_i for one key [K]."""
    for t in range(j + 1, i + 1):
        key = key @ matrices[t]
    return key


def matrix(w: Tensor, beta: Tensor) -> Tensor:
    return torch.eye(len(w), dtype=w.dtype) - beta * torch.outer(w, w)


def matrices(encoding: Encoding, x: Tensor, head: int, size: int) -> list[Tensor]:
    """H_t of a key head for each token of states [M, D] of one document."""
    named = dict(encoding.named_parameters())
    first, second = named["direction.0.weight"], named["direction.1.weight"]
    own = slice(head * size, (head + 1) * size)
    found = []
    for t in range(len(x)):
        w = (second @ (first @ x[t]))[own]
        if "filter" in named:
            steps = range(min(len(named["filter"]), t + 1))
            w = sum(named["filter"][s, own] * (second @ (first @ x[t - s]))[own] for s in steps)
        z = named["strength.weight"][head] @ x[t] + named["strength.bias"][head]
        found.append(matrix(w / w.square().sum().sqrt(), 2 / (1 + torch.exp(-z))))
    return found


def path(encoding: Encoding, call: Call, sharing: int = 1) -> Tensor:
    """Scores [B, H, N, M]; `sharing` query heads in a row share what a key head has."""
    batch, heads, size = call.q.shape[0], call.q.shape[1], call.q.shape[-1]
    turned = {
        (b, h): matrices(encoding, call.x[b], h // sharing, size)
        for b in range(batch)
        for h in range(heads)
    }

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        return passed(call.k[b, h, j], turned[b, h], j, i) @ call.query(b, h, i) / math.sqrt(size)

    return literal.all_pairs(call, score)
