"""The papers' formulas, transcribed literally and slowly in float64: token by token, channel by channel."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from zoo.attention.encoding import Encoding

Rotation = Callable[..., Tensor]
"""(encoding, head, coordinates [P], K) -> the rotation [K, K] of a token."""


def scores(
    rotation: Rotation,
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    pos: Tensor,
    placed: Tensor | None = None,
) -> Tensor:
    """(R_i q_i).(R_j k_j) / sqrt(K) for q [B, H, N, K], k [B, H, M, K] and coordinates [M, P]; the queries are the last N."""
    batch, heads, n, size = q.shape
    m = k.shape[2]
    rows = []
    for h in range(heads):
        turns = [
            rotation(encoding, h, pos[j], size)
            if placed is None or placed[j]
            else torch.eye(size, dtype=q.dtype)
            for j in range(m)
        ]
        for b, i in product(range(batch), range(n)):
            query = turns[i + m - n] @ q[b, h, i]
            rows += [query @ (turns[j] @ k[b, h, j]) / math.sqrt(size) for j in range(m)]
    return torch.stack(rows).view(heads, batch, n, m).transpose(0, 1)


def planes(angles: list[Tensor]) -> Tensor:
    """Pairs (2i, 2i + 1) turned: (a, b) -> (a cos - b sin, a sin + b cos)."""
    return torch.block_diag(
        *[
            torch.stack([torch.stack([a.cos(), -a.sin()]), torch.stack([a.sin(), a.cos()])])
            for a in angles
        ]
    )


def rope(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    return planes([p[0] * 10000 ** (-2 * t / size) for t in range(size // 2)])


def rope_axial(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    if len(p) == 2:
        row, column = p
        ladder = [100 ** (-4 * t / size) for t in range(size // 4)]
        return planes([column * w for w in ladder] + [row * w for w in ladder])
    pairs = size // 2
    counts = [pairs // 3 + (axis < pairs % 3) for axis in range(3)]
    return planes(
        [p[axis] * 100 ** (-6 * t / size) for axis in range(3) for t in range(counts[axis])]
    )


def rope_mixed(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    waves = encoding.frequencies
    return planes([sum(p[a] * waves[a, h, i] for a in range(len(p))) for i in range(size // 2)])


def liere(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    generators, block = encoding.generators, encoding.block
    blocks = []
    for m in range(size // block):
        exponent = torch.zeros(block, block, dtype=p.dtype)
        for a in range(len(p)):
            numbers = iter(generators[a, h, m])
            upper = [
                [next(numbers) if c > r else p.new_zeros(()) for c in range(block)]
                for r in range(block)
            ]
            triangle = torch.stack([torch.stack(row) for row in upper])
            exponent = exponent + p[a] * (triangle - triangle.T)
        blocks.append(torch.linalg.matrix_exp(exponent))
    return torch.block_diag(*blocks, torch.eye(size % block, dtype=p.dtype))


def comrope_ap(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    own = encoding.generators[h]
    return torch.block_diag(
        *[torch.linalg.matrix_exp(p[j % len(p)] * (one - one.T)) for j, one in enumerate(own)]
    )


def comrope_ld(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    own, scales = encoding.generators[h], encoding.scales
    times = [sum(scales[a, h, j] * p[a] for a in range(len(p))) for j in range(len(own))]
    return torch.block_diag(
        *[torch.linalg.matrix_exp(t * (one - one.T)) for t, one in zip(times, own, strict=True)]
    )


def none(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    return torch.eye(size, dtype=p.dtype)


ROTATIONS: dict[str, Rotation] = {
    "none": none,
    "rope": rope,
    "rope_axial": rope_axial,
    "rope_mixed": rope_mixed,
    "liere": liere,
    "comrope_ap": comrope_ap,
    "comrope_ld": comrope_ld,
}


def sinusoidal(
    pos: Tensor, width: int, layout: str = "interleaved", base: float = 10000.0
) -> Tensor:
    """[N, D] for coordinates [N, P]: D / P channels per axis in array order, each with its own ladder."""
    count, axes = pos.shape
    own = width // axes
    table = torch.zeros(count, width, dtype=pos.dtype)
    for n, a, i in product(range(count), range(axes), range(own // 2)):
        angle = pos[n, a] * base ** (-2 * i / own)
        sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, own // 2 + i)
        table[n, a * own + sine], table[n, a * own + cosine] = angle.sin(), angle.cos()
    return table
