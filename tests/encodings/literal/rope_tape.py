"""Rules that stretch rotary positions, and frames carried from layer to layer, transcribed literally in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from zoo.attention.encoding import Encoding
from zoo.attention.layer import SelfAttention

Frequencies = tuple[list[float], float]
"""Radians per position of each pair, and what cosines and sines are multiplied by."""


def plain(size: int, base: float = 10000.0) -> Frequencies:
    """`size` is K', the number of channels that turn; so below."""
    return [base ** (-2 * t / size) for t in range(size // 2)], 1.0


def linear(size: int, factor: float, base: float = 10000.0) -> Frequencies:
    return [w / factor for w in plain(size, base)[0]], 1.0


def ntk(size: int, factor: float, base: float = 10000.0) -> Frequencies:
    return plain(size, base * factor ** (size / (size - 2)))


def yarn(size: int, factor: float, original: int, base: float = 10000.0) -> Frequencies:
    def pair(turns: float) -> float:
        """That makes so many turns within the original length."""
        return size * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = (min(max(t, 0), size - 1) for t in (math.floor(pair(32)), math.ceil(pair(1))))
    frequencies = []
    for t, w in enumerate(plain(size, base)[0]):
        g = min(max((t - low) / (high - low), 0), 1)
        frequencies.append(w * (1 - g) + g * w / factor)
    return frequencies, 0.1 * math.log(factor) + 1


def llama3(size: int, factor: float, original: int, base: float = 10000.0) -> Frequencies:
    frequencies = []
    for w in plain(size, base)[0]:
        wavelength = 2 * math.pi / w
        g = (original / wavelength - 1) / 3
        if wavelength < original / 4:
            frequencies.append(w)
        elif wavelength > original:
            frequencies.append(w / factor)
        else:
            frequencies.append((1 - g) * w / factor + g * w)
    return frequencies, 1.0


def turned(x: Tensor, cosines: Sequence[Tensor], sines: Sequence[Tensor]) -> Tensor:
    """A vector [K] whose pairs (2t, 2t + 1) are turned, the channels beyond them left alone."""
    y = x.clone()
    for t, (c, s) in enumerate(zip(cosines, sines, strict=True)):
        a, b = x[2 * t], x[2 * t + 1]
        y[2 * t], y[2 * t + 1] = a * c - b * s, a * s + b * c
    return y


def each_turned(x: Tensor, pos: Tensor, frequencies: Frequencies) -> Tensor:
    """Heads [B, H, N, K] at positions [N]."""
    waves, size = frequencies
    y = torch.empty_like(x)
    for b, h, n in product(*map(range, x.shape[:3])):
        angles = [pos[n] * w for w in waves]
        y[b, h, n] = turned(
            x[b, h, n], [size * a.cos() for a in angles], [size * a.sin() for a in angles]
        )
    return y


def tape(
    layers: Sequence[SelfAttention], encodings: Sequence[Encoding], x: Tensor, pos: Tensor
) -> Tensor:
    """States [N, D] after causal layers with residuals. Frames start as those of rope; the last layer's are left alone."""
    dims = layers[0].dims
    count, heads, size = len(x), dims.heads, dims.head_dim
    waves = torch.tensor(plain(size)[0], dtype=x.dtype)
    rope = torch.stack(
        [torch.stack([(p * waves).cos(), (p * waves).sin()]) for p in pos]
    )  # [N, 2, K/2]
    frames = torch.stack([rope] * heads, dim=1)  # [N, H, 2, K/2]
    for number, (layer, encoding) in enumerate(zip(layers, encodings, strict=True)):
        q = (x @ layer.q_proj.weight.T + layer.q_proj.bias).view(count, heads, size)
        k = (x @ layer.k_proj.weight.T).view(count, heads, size)
        v = (x @ layer.v_proj.weight.T + layer.v_proj.bias).view(count, heads, size)
        out, mixed = torch.zeros_like(v), torch.zeros_like(frames)
        for h, i in product(range(heads), range(count)):
            query = turned(q[i, h], *frames[i, h])
            seen = range(i + 1)
            scores = torch.stack(
                [query @ turned(k[j, h], *frames[j, h]) / math.sqrt(size) for j in seen]
            )
            for j, weight in enumerate(scores.exp() / scores.exp().sum()):
                out[i, h] += weight * v[j, h]
                mixed[i, h] += weight * frames[j, h]
        x = x + out.view(count, -1) @ layer.o_proj.weight.T + layer.o_proj.bias
        if number < len(layers) - 1:
            frames = torch.stack(
                [updated(encoding, *of_token) for of_token in zip(frames, mixed, x, strict=True)]
            )
    return x


def updated(encoding: Encoding, frame: Tensor, mixed: Tensor, x: Tensor) -> Tensor:
    """A token's frames [H, 2, K/2] after a layer, from what attention mixed of all frames and the token's state [D]."""
    heads = range(len(frame))
    first = torch.stack(
        [frame[h] + sum(encoding.mix.weight[h, e] * mixed[e] for e in heads) for h in heads]
    )
    gate = encoding.read.weight @ (x / x.square().mean().sqrt())  # [R]
    gate = gate / (1 + (-gate).exp())
    ranks = range(len(gate))
    inner = [gate[r] * sum(encoding.into.weight[r, h] * first[h] for h in heads) for r in ranks]
    return torch.stack(
        [first[h] + sum(encoding.out.weight[h, r] * inner[r] for r in ranks) for h in heads]
    )
