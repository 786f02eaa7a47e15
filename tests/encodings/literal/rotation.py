"""Scores of queries and keys that are rotated by their position, with a matrix for each token."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from zoo.attention.encoding import Encoding

Rotation = Callable[[Encoding, int, Tensor, int], Tensor]
"""(encoding, head, coordinates [P], K) -> the rotation [K, K] of a token."""


def score_rotations(
    rotation: Rotation,
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    pos: Tensor,
    placed: Tensor | None = None,
) -> Tensor:
    """Compute (R_i q_i).(R_j k_j) / sqrt(K).

    Args:
        rotation: The rotation of a token.
        encoding: Its parameters.
        q: Queries [B, H, N, K], the last N of M tokens.
        k: Keys [B, H, M, K].
        pos: Coordinates [M, P].
        placed: Which tokens have a position, bool [M]; the others are not rotated.
    """
    batch, heads, n, size = q.shape
    m = k.shape[2]
    rows = []
    for h in range(heads):
        turns = [
            rotation(encoding, h, pos[j], size)
            if placed is None or placed[j]
            else torch.eye(size, dtype=q.dtype)
            for j in range(m)
        ]
        for b, i in product(range(batch), range(n)):
            query = turns[i + m - n] @ q[b, h, i]
            rows += [query @ (turns[j] @ k[b, h, j]) / math.sqrt(size) for j in range(m)]
    return torch.stack(rows).view(heads, batch, n, m).transpose(0, 1)


def rotate_planes(angles: list[Tensor]) -> Tensor:
    """Return the rotation [K, K] of pairs (2i, 2i + 1): (a, b) -> (a cos - b sin, a sin + b cos)."""
    return torch.block_diag(
        *[
            torch.stack([torch.stack([a.cos(), -a.sin()]), torch.stack([a.sin(), a.cos()])])
            for a in angles
        ]
    )
