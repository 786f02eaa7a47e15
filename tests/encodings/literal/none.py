"""No encoding: the rotation of a token is the identity."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention.encoding import Encoding


def none(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    return torch.eye(size, dtype=p.dtype)
