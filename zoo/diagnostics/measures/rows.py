"""How a query spreads its attention over the keys."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention import precise


def shares(weights: Tensor) -> Tensor:
    """|w_j| / sum_j |w_j| along each row, [B, H, N, M]; NaN along a row without any weight."""
    sizes = precise(weights).abs()
    return sizes / sizes.sum(-1, keepdim=True)


def total(weights: Tensor) -> Tensor:
    """sum_j w_j, [B, H, N]: how much is attended at all. 1 for a softmax, 0 for a row that sees nothing.

    Signs count: it is what comes of a value of 1 that all keys share.
    """
    return precise(weights).sum(-1)


def entropy(weights: Tensor) -> Tensor:
    """-sum_j s_j log s_j of shares s in nats, [B, H, N]: from 0, one key, to log M, all keys alike (Shannon 1948)."""
    return torch.special.entr(shares(weights)).sum(-1)


def mass(weights: Tensor, where: Tensor) -> Tensor:
    """The share [B, H, N] of a row that falls on the pairs `where`, bool [1|B, 1|H, 1|N, M]."""
    # a product, not a mask: a row without weight stays NaN
    return (shares(weights) * where).sum(-1)
