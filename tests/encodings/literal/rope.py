"""RoPE: pairs (2t, 2t+1) rotate by p w_t, w_t = base^(-2t/K'), and rules that stretch w."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from literal.call import Call, score_products
from literal.rotation import rotate_planes
from zoo.attention.encoding import Encoding

Frequencies = tuple[list[float], float]
"""Radians per position of each pair, and what cosines and sines are multiplied by."""


def rope(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    return rotate_planes([p[0] * 10000 ** (-2 * t / size) for t in range(size // 2)])


def list_frequencies(size: int, base: float = 10000.0) -> Frequencies:
    """`size` is K', the number of channels that rotate; so below."""
    return [base ** (-2 * t / size) for t in range(size // 2)], 1.0


def linear(size: int, factor: float, base: float = 10000.0) -> Frequencies:
    return [w / factor for w in list_frequencies(size, base)[0]], 1.0


def ntk(size: int, factor: float, base: float = 10000.0) -> Frequencies:
    return list_frequencies(size, base * factor ** (size / (size - 2)))


def yarn(size: int, factor: float, original: int, base: float = 10000.0) -> Frequencies:
    def find_pair(turns: float) -> float:
        """Find the pair that makes so many turns within the original length."""
        return size * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = (
        min(max(t, 0), size - 1) for t in (math.floor(find_pair(32)), math.ceil(find_pair(1)))
    )
    frequencies = []
    for t, w in enumerate(list_frequencies(size, base)[0]):
        g = min(max((t - low) / (high - low), 0), 1)
        frequencies.append(w * (1 - g) + g * w / factor)
    return frequencies, 0.1 * math.log(factor) + 1


def llama3(size: int, factor: float, original: int, base: float = 10000.0) -> Frequencies:
    frequencies = []
    for w in list_frequencies(size, base)[0]:
        wavelength = 2 * math.pi / w
        g = (original / wavelength - 1) / 3
        if wavelength < original / 4:
            frequencies.append(w)
        elif wavelength > original:
            frequencies.append(w / factor)
        else:
            frequencies.append((1 - g) * w / factor + g * w)
    return frequencies, 1.0


def rotate_vector(x: Tensor, cosines: Sequence[Tensor], sines: Sequence[Tensor]) -> Tensor:
    """Rotate the pairs (2t, 2t + 1) of a vector [K] and leave the channels beyond them alone."""
    y = x.clone()
    for t, (c, s) in enumerate(zip(cosines, sines, strict=True)):
        a, b = x[2 * t], x[2 * t + 1]
        y[2 * t], y[2 * t + 1] = a * c - b * s, a * s + b * c
    return y


def rotate_heads(x: Tensor, pos: Tensor, frequencies: Frequencies) -> Tensor:
    """Rotate heads [B, H, N, K] at positions [N]."""
    waves, size = frequencies
    y = torch.empty_like(x)
    for b, h, n in product(*map(range, x.shape[:3])):
        angles = [pos[n] * w for w in waves]
        y[b, h, n] = rotate_vector(
            x[b, h, n], [size * a.cos() for a in angles], [size * a.sin() for a in angles]
        )
    return y


def score_rope(call: Call, frequencies: Frequencies) -> Tensor:
    """Compute the scores [B, H, N, M] of a call whose queries and keys are rotated."""
    q = rotate_heads(call.q, call.pos[call.shift :], frequencies)
    k = rotate_heads(call.k, call.pos, frequencies)
    return score_products(replace(call, q=q, k=k))
