"""Temperatures, products of sinusoids, fading and summed waves, distances on grids, transcribed literally in float64."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from literal.biases import Bias, bucket
from zoo.attention.encoding import Encoding


def sandwich(heads: int, width: int = 128) -> Bias:
    def bias(h: int, i: Tensor, j: Tensor) -> Tensor:
        waves = sum(((i - j) / 10000 ** (2 * k / width)).cos() for k in range(1, width // 2 + 1))
        return (waves - width / 2) * heads / (8 * (h + 1))

    return bias


def xpos(
    q: Tensor,
    k: Tensor,
    pos: Tensor,
    gamma: float = 0.4,
    span: float = 512.0,
    base: float = 10000.0,
) -> Tensor:
    """Scores [B, H, N, M] of all pairs: each pair of channels turned by its distance and faded by it."""
    batch, heads, n, size = q.shape
    m = k.shape[2]
    scores = q.new_zeros(batch, heads, n, m)
    for i, j, t in product(range(n), range(m), range(size // 2)):
        distance = float(pos[i + m - n] - pos[j])
        zeta = (2 * t / size + gamma) / (1 + gamma)
        angle = distance * base ** (-2 * t / size)
        (a, b), (c, d) = (
            q[:, :, i, 2 * t : 2 * t + 2].unbind(-1),
            k[:, :, j, 2 * t : 2 * t + 2].unbind(-1),
        )
        part = (a * c + b * d) * math.cos(angle) + (b * c - a * d) * -math.sin(angle)
        scores[:, :, i, j] += part * zeta ** (distance / span) / math.sqrt(size)
    return scores


def fope(encoding: Encoding, x: Tensor, pos: Tensor, length: int, base: float = 10000.0) -> Tensor:
    """Heads [B, H, N, K] at positions [N]."""
    size = x.shape[-1]
    waves = [w for t in range(size // 2) if (w := base ** (-2 * t / size)) >= 2 * math.pi / length]
    columns, y = min(len(waves), size // 4), x.clone()
    for h, n, g in product(range(x.shape[1]), range(len(pos)), range(columns)):
        c = sum((pos[n] * w).cos() * encoding.cosine[h, f, g] for f, w in enumerate(waves))
        s = sum((pos[n] * w).sin() * encoding.sine[h, f, g] for f, w in enumerate(waves))
        x1, x2 = x[:, h, n, g], x[:, h, n, g + size // 2]
        y[:, h, n, g], y[:, h, n, g + size // 2] = x1 * c - x2 * s, x2 * c + x1 * s
    return y


def manhattan(p: Tensor, r: Tensor) -> float:
    return sum(abs(float(a - b)) for a, b in zip(p, r, strict=True))


def euclidean(p: Tensor, r: Tensor) -> float:
    return math.dist(p.tolist(), r.tolist())


def alibi(heads: int, pos: Tensor, distance=manhattan) -> Tensor:
    """Biases [H, N, N] for coordinates [N, P] and heads that are a power of two."""
    return torch.tensor(
        [
            [[-(2 ** (-8 * h / heads)) * distance(p, r) for r in pos] for p in pos]
            for h in range(1, heads + 1)
        ],
        dtype=pos.dtype,
    )


def t5(table: Tensor, pos: Tensor) -> Tensor:
    """Biases [H, N, N] for whole coordinates [N, P], of tables [P, buckets, H]."""
    biases = table.new_zeros(table.shape[2], len(pos), len(pos))
    for (i, p), (j, r), a in product(enumerate(pos), enumerate(pos), range(pos.shape[1])):
        biases[:, i, j] += table[a, bucket(int(p[a] - r[a]), False, table.shape[1], 128)]
    return biases
