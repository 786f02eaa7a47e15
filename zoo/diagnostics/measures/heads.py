"""What a head is as a whole, and how much heads are alike."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention import precise


def effective_rank(weights: Tensor) -> Tensor:
    """exp(-sum_k p_k log p_k), p_k = sigma_k / sum sigma of singular values, [B, H] (Roy & Vetterli 2007, EUSIPCO).

    From 1, all queries look alike, to the smaller of N and M; NaN for a head without any weight.
    """
    weights = precise(weights)
    known = weights.isfinite().all((-2, -1), keepdim=True)
    values = torch.linalg.svdvals(weights.where(known, 0))  # of zeros, NaN comes below
    return torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1).exp()


def largest(scores: Tensor) -> Tensor:
    """The largest finite score, [B, H]; NaN where no pair may attend.

    Where it grows, training becomes unstable (Dehghani et al. 2023, arXiv:2302.05442).
    """
    scores = precise(scores)
    found = scores.masked_fill(~scores.isfinite(), float("-inf")).amax((-2, -1))
    return found.masked_fill(found.isinf(), float("nan"))


def similarity(weights: Tensor) -> Tensor:
    """Cosine of the rows of two heads, averaged over queries, [B, H, H]; 1 on the diagonal.

    Row by row, so that each query counts alike: in the cosine of whole matrices those with sharp rows would count most.
    Queries for which either head has no weight are left out; NaN where none is left.
    """
    rows = precise(weights).transpose(1, 2)  # [B, N, H, M]
    unit = rows / rows.norm(dim=-1, keepdim=True)
    return (unit @ unit.mT).nanmean(1)
