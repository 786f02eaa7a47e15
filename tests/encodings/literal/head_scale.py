"""HeadScale: scores * scale_h."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention.encoding import Encoding


def head_scale(encoding: Encoding, before: Tensor) -> Tensor:
    """`before` are the scores [B, H, N, M] as they reach the encoding."""
    heads = zip(before.unbind(1), encoding.scale, strict=True)
    return torch.stack([scores * scale for scores, scale in heads], dim=1)
