"""Where the layers together look."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.attention import precise


def rollout(layers: Sequence[Tensor], residual: float = 0.5) -> Tensor:
    """A_L ... A_1, A = rows of (residual I + (1 - residual) mean_h |W_h|) scaled to sum to one (arXiv:2005.00928).

    Attention rollout (Abnar & Zuidema 2020): [B, N, N], what each last state is made of, from the weights [B, H, N, N] of
    all layers, the first one first. A row that sees nothing passes itself on.
    """
    found: Tensor | None = None
    for weights in layers:
        mixed = (1 - residual) * precise(weights).abs().mean(1)
        mixed = mixed + residual * torch.eye(mixed.shape[-1], dtype=mixed.dtype, device=mixed.device)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        found = mixed if found is None else mixed @ found
    if found is None:
        raise ValueError("a rollout needs at least one layer")
    return found
