"""RoPE-Axial: a group of pairs per axis, on images the column first; p_a 100^(-2Pk/K)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from literal.rope import spread_waves, yarn
from literal.rotation import rotate_planes
from zoo.attention.encoding import Encoding


def rope_axial(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    if len(p) == 2:
        row, column = p
        ladder = [100 ** (-4 * t / size) for t in range(size // 4)]
        return rotate_planes([column * w for w in ladder] + [row * w for w in ladder])
    pairs = size // 2
    axes = len(p)
    counts = [pairs // axes + (axis < pairs % axes) for axis in range(axes)]
    return rotate_planes(
        [
            p[axis] * 100 ** (-2 * axes * t / size)
            for axis in range(axes)
            for t in range(counts[axis])
        ]
    )


def rope_axial_waves(ends: Sequence[tuple[float, float]]):
    """Return the rotation of a token whose axis a has wavelengths from ends[a][0] to ends[a][1]."""

    def rotate(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
        axes, pairs = len(p), size // 2
        angles = []
        for number in range(axes):
            axis = [1, 0][number] if axes == 2 else number
            count = pairs // axes + (number < pairs % axes)
            angles += [p[axis] * w for w in spread_waves(*ends[axis], count)]
        return rotate_planes(angles)

    return rotate


def scale_axis(
    rule: str, channels: float, count: int, factor: float, original: int
) -> tuple[list[float], float]:
    """Scale the frequencies of one axis, as RoPE with this number of channels and base 100."""
    if rule == "yarn":
        return yarn(channels, factor, original, 100.0, count=count)
    base = 100.0 * factor ** (channels / (channels - 2)) if rule == "ntk" else 100.0
    divisor = factor if rule == "linear" else 1.0
    return [base ** (-2 * t / channels) / divisor for t in range(count)], 1.0


def rope_axial_scaled(rule: str, factors: Sequence[float], sizes: Sequence[int]):
    """Return the rotation of a token where axis a has a factor and a size in training."""

    def rotate(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
        axes, pairs = len(p), size // 2
        blocks = []
        for number in range(axes):
            axis = [1, 0][number] if axes == 2 else number  # on images the column first
            count = pairs // axes + (number < pairs % axes)
            waves, sharp = scale_axis(rule, size / axes, count, factors[axis], sizes[axis])
            blocks.append(sharp * rotate_planes([p[axis] * w for w in waves]))
        return torch.block_diag(*blocks)

    return rotate
