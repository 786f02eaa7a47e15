"""Sinusoids: sin(p w_i) and cos(p w_i), w_i = base^(-2i/D), D/P channels for each axis."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor


def sinusoidal(
    pos: Tensor, width: int, layout: str = "interleaved", base: float = 10000.0
) -> Tensor:
    """Return [N, D] for coordinates [N, P]: D / P channels per axis in array order, each with its own ladder."""
    count, axes = pos.shape
    own = width // axes
    table = torch.zeros(count, width, dtype=pos.dtype)
    for n, a, i in product(range(count), range(axes), range(own // 2)):
        angle = pos[n, a] * base ** (-2 * i / own)
        sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, own // 2 + i)
        table[n, a * own + sine], table[n, a * own + cosine] = angle.sin(), angle.cos()
    return table
