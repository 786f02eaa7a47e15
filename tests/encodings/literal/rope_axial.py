"""RoPE-Axial: a group of pairs per axis, on images the column first; p_a 100^(-2Pk/K)."""

from __future__ import annotations

from torch import Tensor

from literal.rotation import rotate_planes
from zoo.attention.encoding import Encoding


def rope_axial(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    if len(p) == 2:
        row, column = p
        ladder = [100 ** (-4 * t / size) for t in range(size // 4)]
        return rotate_planes([column * w for w in ladder] + [row * w for w in ladder])
    pairs = size // 2
    counts = [pairs // 3 + (axis < pairs % 3) for axis in range(3)]
    return rotate_planes(
        [p[axis] * 100 ** (-6 * t / size) for axis in range(3) for t in range(counts[axis])]
    )
