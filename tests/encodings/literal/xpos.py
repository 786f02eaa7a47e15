"""xPos: RoPE with each pair faded by zeta_t^((p_i - p_j) / span)."""

from __future__ import annotations

import math
from itertools import product

from torch import Tensor


def xpos(
    q: Tensor,
    k: Tensor,
    pos: Tensor,
    gamma: float = 0.4,
    span: float = 512.0,
    base: float = 10000.0,
) -> Tensor:
    """Compute scores [B, H, N, M] of all pairs: each pair of channels turned by its distance and faded by it."""
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
