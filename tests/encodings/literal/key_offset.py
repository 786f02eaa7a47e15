"""Key offset: q_i.k'_j / sqrt(K), the last channels of k'_j are those of the token before j."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from literal.call import Call, score_pairs


def find_before(j: int, documents: Sequence[int], placed: Sequence[bool]) -> int | None:
    """Return the last token before j of its document that is no padding and has a position."""
    for n in range(j - 1, -1, -1):
        if documents[n] == documents[j] and placed[n]:
            return n
    return None


def key_offset(
    call: Call,
    fraction: float = 0.5,
    first: str = "zero",
    documents: Sequence[int] | None = None,
    placed: Sequence[bool] | None = None,
) -> Tensor:
    count, size = call.k.shape[2:]
    documents = [0] * count if documents is None else documents
    placed = [True] * count if placed is None else placed
    moved = round(fraction * size)

    def make_key(b: int, h: int, j: int) -> Tensor:
        own = call.k[b, h, j]
        if not placed[j]:
            return own
        n = find_before(j, documents, placed)
        start = own if first == "own" else torch.zeros_like(own)
        tail = start if n is None else call.k[b, h, n]
        return torch.stack([own[c] if c < size - moved else tail[c] for c in range(size)])

    return score_pairs(
        call, lambda b, h, i, j: call.query(b, h, i) @ make_key(b, h, j) / math.sqrt(size)
    )
