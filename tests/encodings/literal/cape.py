"""CAPE in evaluation: sinusoids of positions, on images waves in every direction."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor


def cape(pos: Tensor, width: int) -> Tensor:
    """Return [N, D] for coordinates [N, 2] (row, column): cosines, then sines."""
    n = width // 2
    table = torch.zeros(len(pos), width, dtype=pos.dtype)
    for t, k in product(range(len(pos)), range(n)):
        rho = 10 ** (k / (n - 1))
        phase = math.pi * (pos[t, 0] * rho * math.cos(k) + pos[t, 1] * rho * math.sin(k))
        table[t, k], table[t, n + k] = phase.cos(), phase.sin()
    return table


def centre(pos: Tensor, document: list[int], placed: list[bool]) -> Tensor:
    """Return coordinates [N, P] less the mean of those of the same document that have a place."""
    rows = []
    for own, number in zip(pos, document, strict=True):
        others = zip(pos, document, placed, strict=True)
        same = [p for p, d, has_place in others if d == number and has_place]
        rows.append(own - sum(same) / len(same) if same else own)
    return torch.stack(rows)
