"""M-RoPE: pair i rotates by p_a(i) w_i, w_i = base^(-2i/K'), where a(i) is t, h or w."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from literal.rope import list_frequencies
from literal.rotation import Rotation, rotate_planes
from zoo.attention.encoding import Encoding


def find_axis(i: int, sections: Sequence[int], layout: str) -> int:
    """Return 0, 1 or 2: whether pair i rotates by t, h or w."""
    t, h, w = sections
    if layout == "blocks":
        return 0 if i < t else 1 if i < t + h else 2
    if i % 3 == 1 and i < 3 * h:
        return 1
    if i % 3 == 2 and i < 3 * w:
        return 2
    return 0


def mrope(
    sections: Sequence[int], layout: str, base: float = 10000.0, fraction: float = 1.0
) -> Rotation:
    """Return the rotation of a token at (t, h, w)."""

    def rotate(encoding: Encoding, head: int, p: Tensor, size: int) -> Tensor:
        width = round(fraction * size)
        frequencies, _ = list_frequencies(width, base)
        turned = rotate_planes(
            [p[find_axis(i, sections, layout)] * w for i, w in enumerate(frequencies)]
        )
        return torch.block_diag(turned, torch.eye(size - width, dtype=p.dtype))

    return rotate
