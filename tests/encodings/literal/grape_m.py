"""GRAPE-M: q and k rotate by exp(p sum_s (a_s b_s^T - b_s a_s^T))."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from literal.call import Call, score_pairs
from zoo.attention.encoding import Encoding


def grape_m(encoding: Encoding, call: Call) -> Tensor:
    """A product of rotations by Rodrigues' formula, one for each plane of two channels."""
    size = call.q.shape[-1]

    def rotation(h: int, p: Tensor) -> Tensor:
        whole = torch.eye(size, dtype=torch.float64)
        for t in range(size // 2):
            a, b = torch.eye(size, dtype=torch.float64)[2 * t : 2 * t + 2]
            whole = whole @ rotate_in_plane(b, a, p * (encoding.log_frequencies[t] / 16).exp())
        return whole

    return score_by_rotation(call, rotation)


def grape_m_mixture(encoding: Encoding, call: Call) -> Tensor:
    def rotation(h: int, p: Tensor) -> Tensor:
        planes = zip(encoding.first[h], encoding.second[h], strict=True)
        return torch.linalg.matrix_exp(
            p * sum(torch.outer(a, b) - torch.outer(b, a) for a, b in planes)
        )

    return score_by_rotation(call, rotation)


def score_by_rotation(call: Call, rotation: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Compute scores q_i^T R_h(p_i)^T R_h(p_j) k_j / sqrt(K)."""
    root = math.sqrt(call.q.shape[-1])

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        q, k = (
            rotation(h, call.pos[i]) @ call.query(b, h, i),
            rotation(h, call.pos[j]) @ call.k[b, h, j],
        )
        return q @ k / root

    return score_pairs(call, score)


def rotate_in_plane(a: Tensor, b: Tensor, p: Tensor) -> Tensor:
    """Return exp(p (a b^T - b a^T)) by Rodrigues' formula."""
    generator = torch.outer(a, b) - torch.outer(b, a)
    s = ((a @ a) * (b @ b) - (a @ b) ** 2).sqrt()
    one = torch.eye(len(a), dtype=torch.float64)
    return one + (p * s).sin() / s * generator + (1 - (p * s).cos()) / s**2 * generator @ generator
