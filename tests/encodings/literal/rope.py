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


def spread_waves(shortest: float, longest: float, count: int) -> list[float]:
    """Return 2 pi / T of wavelengths T that grow by equal factors from the shortest to the longest."""
    steps = [t / (count - 1) if count > 1 else 0.0 for t in range(count)]
    return [
        2 * math.pi / math.exp(math.log(shortest) + s * (math.log(longest) - math.log(shortest)))
        for s in steps
    ]


def rope_waves(shortest: float, longest: float):
    """Return the rotation of a token by wavelengths."""

    def rotate(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
        return rotate_planes([p[0] * w for w in spread_waves(shortest, longest, size // 2)])

    return rotate


def list_frequencies(size: int, base: float = 10000.0) -> Frequencies:
    """`size` is K', the number of channels that rotate; so below."""
    return [base ** (-2 * t / size) for t in range(size // 2)], 1.0


def linear(size: int, factor: float, base: float = 10000.0) -> Frequencies:
    return [w / factor for w in list_frequencies(size, base)[0]], 1.0


def ntk(size: int, factor: float, base: float = 10000.0) -> Frequencies:
    return list_frequencies(size, base * factor ** (size / (size - 2)))


def yarn(
    size: float,
    factor: float,
    original: int,
    base: float = 10000.0,
    beta_fast: float = 32,
    beta_slow: float = 1,
    truncate: bool = True,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    count: int | None = None,
) -> Frequencies:
    """`count` is the number of pairs, where it is not K'/2."""

    def find_pair(turns: float) -> float:
        """Find the pair that makes so many turns within the original length."""
        return size * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = find_pair(beta_fast), find_pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = (min(max(t, 0), size - 1) for t in (low, high))
    if low == high:
        high += 0.001
    frequencies = []
    for t in range(int(size) // 2 if count is None else count):
        w = base ** (-2 * t / size)
        g = min(max((t - low) / (high - low), 0), 1)
        frequencies.append(w * (1 - g) + g * w / factor)

    def measure(c: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * c * math.log(factor) + 1

    if attention_factor is not None:
        return frequencies, attention_factor
    if mscale is not None and mscale_all_dim is not None:
        return frequencies, measure(mscale) / measure(mscale_all_dim)
    return frequencies, measure(1)


def llama3(
    size: int,
    factor: float,
    original: int,
    base: float = 10000.0,
    low_freq_factor: float = 1,
    high_freq_factor: float = 4,
) -> Frequencies:
    frequencies = []
    for w in list_frequencies(size, base)[0]:
        wavelength = 2 * math.pi / w
        g = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
        if wavelength < original / high_freq_factor:
            frequencies.append(w)
        elif wavelength > original / low_freq_factor:
            frequencies.append(w / factor)
        else:
            frequencies.append((1 - g) * w / factor + g * w)
    return frequencies, 1.0


def dynamic(
    size: int, factor: float, original: int, base: float = 10000.0, length: int | None = None
) -> Frequencies:
    n = max(length or original, original)
    larger = base * (factor * n / original - (factor - 1)) ** (size / (size - 2))
    return list_frequencies(size, larger)


def longrope(
    size: int,
    original: int,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    factor: float,
    base: float = 10000.0,
    length: int | None = None,
    attention_factor: float | None = None,
) -> Frequencies:
    divisors = long_factor if (length or original) > original else short_factor
    plain = list_frequencies(size, base)[0]
    frequencies = [w / e for w, e in zip(plain, divisors, strict=True)]
    if attention_factor is not None:
        return frequencies, attention_factor
    if factor <= 1:
        return frequencies, 1.0
    return frequencies, math.sqrt(1 + math.log(factor) / math.log(original))


def proportional(
    size: int, fraction: float, factor: float = 1.0, base: float = 10000.0
) -> Frequencies:
    rotated = math.floor(fraction * size / 2)
    plain = list_frequencies(size, base)[0]
    return [w / factor if t < rotated else 0.0 for t, w in enumerate(plain)], 1.0


def clipped(size: int, count: int | None = None, base: float = 10000.0) -> Frequencies:
    if count is None:
        count = round(20 * size / 128)
    plain, kept = list_frequencies(size, base)[0], size // 2 - count
    frequencies = plain[:kept]
    for step, w in enumerate(plain[kept:]):
        t = math.pi * step / (count - 1) if count > 1 else 0.0
        frequencies.append(w * (1 + math.cos(t)) / 2)
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
