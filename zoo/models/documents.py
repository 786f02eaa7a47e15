"""Where tokens stand within their documents."""

from __future__ import annotations

import torch
from torch import Tensor


def places(documents: Tensor) -> Tensor:
    """[B, N] -> [B, N]: each token's place, counted from 0 within its run of equal document numbers."""
    slots = torch.arange(documents.shape[1], device=documents.device)
    fresh = torch.ones_like(documents, dtype=torch.bool)
    fresh[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return slots - torch.where(fresh, slots, 0).cummax(1).values


def lengths(documents: Tensor) -> Tensor:
    """[B, N] -> [B, N]: how many tokens each token's document has."""
    return (documents[:, None] == documents[..., None]).sum(-1)
