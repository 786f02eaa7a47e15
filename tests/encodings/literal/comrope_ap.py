"""ComRoPE-AP: block j rotates by exp(p_(j mod P) (G_j - G_j^T))."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention.encoding import Encoding


def comrope_ap(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    own = encoding.generators[h]
    return torch.block_diag(
        *[torch.linalg.matrix_exp(p[j % len(p)] * (one - one.T)) for j, one in enumerate(own)]
    )
