"""ComRoPE-LD: block j rotates by exp((sum_a scales[a, j] p_a) (G_j - G_j^T))."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention.encoding import Encoding


def comrope_ld(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    own, scales = encoding.generators[h], encoding.scales
    times = [sum(scales[a, h, j] * p[a] for a in range(len(p))) for j in range(len(own))]
    return torch.block_diag(
        *[torch.linalg.matrix_exp(t * (one - one.T)) for t, one in zip(times, own, strict=True)]
    )
