"""FoPE: pairs (t, t + K/2) become (x1 C - x2 S, x2 C + x1 S), C and S sums of waves."""

from __future__ import annotations

import math
from itertools import product

from torch import Tensor

from zoo.attention.encoding import Encoding


def fope(encoding: Encoding, x: Tensor, pos: Tensor, length: int, base: float = 10000.0) -> Tensor:
    """Transform heads [B, H, N, K] at positions [N]."""
    size = x.shape[-1]
    waves = [w for t in range(size // 2) if (w := base ** (-2 * t / size)) >= 2 * math.pi / length]
    columns, y = min(len(waves), size // 4), x.clone()
    for h, n, g in product(range(x.shape[1]), range(len(pos)), range(columns)):
        c = sum((pos[n] * w).cos() * encoding.cosine[h, f, g] for f, w in enumerate(waves))
        s = sum((pos[n] * w).sin() * encoding.sine[h, f, g] for f, w in enumerate(waves))
        x1, x2 = x[:, h, n, g], x[:, h, n, g + size // 2]
        y[:, h, n, g], y[:, h, n, g + size // 2] = x1 * c - x2 * s, x2 * c + x1 * s
    return y
