"""Angles that tokens add up, polar coordinates and the forms of GRAPE, transcribed literally in float64.

A reference takes an encoding, for its parameters alone, and a call; what it needs of the encoding's options it is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from literal.biases import Call, all_pairs, product_of
from zoo.attention.encoding import Encoding

Angle = Callable[[int, int, int, int], Tensor]
"""(b, h, t, l) -> what token l adds to the angle of pair t."""


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def softplus(x: Tensor) -> Tensor:
    return (1 + x.exp()).log()


def summed(call: Call, angle: Angle, first: int = 1, last: int = 0) -> Tensor:
    """Scores of pairs of channels turned by the angles of tokens j + first .. i + last."""
    size, angle = call.q.shape[-1], cache(angle)

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        q, k, total = call.query(b, h, i), call.k[b, h, j], torch.zeros((), dtype=torch.float64)
        for t in range(size // 2):
            a = sum(
                (angle(b, h, t, n) for n in range(j + first, i + last + 1)),
                torch.zeros((), dtype=torch.float64),
            )
            (q1, q2), (k1, k2) = q[2 * t : 2 * t + 2], k[2 * t : 2 * t + 2]
            total = total + (q1 * k1 + q2 * k2) * a.cos() + (q1 * k2 - q2 * k1) * a.sin()
        return total / math.sqrt(size)

    return all_pairs(call, score)


def selective_rope(
    encoding: Encoding, call: Call, base: float = 500000.0, silu: bool = False
) -> Tensor:
    heads, size = call.q.shape[1], call.q.shape[-1]
    groups = encoding.dims.kv_heads or heads

    @cache
    def unit(b: int, n: int) -> Tensor:
        shares = [x / x.norm() for x in call.x[b, n].split(size)]
        return torch.cat(shares)

    @cache
    def inner(b: int, n: int) -> Tensor:
        return encoding.into.weight @ unit(b, n)

    def angle(b: int, h: int, t: int, n: int) -> Tensor:
        channel = (h * groups // heads) * (size // 2) + t
        mixed = torch.zeros((), dtype=torch.float64)
        for back in range(min(len(encoding.kernel), n + 1)):
            mixed = mixed + encoding.kernel[back, channel] * (
                encoding.out.weight[channel] @ inner(b, n - back)
            )
        if silu:
            mixed = mixed * sigmoid(mixed)
        if encoding.gate is not None:
            gate = h * groups // heads
            mixed = mixed * sigmoid(
                encoding.gate.weight[gate] @ unit(b, n) + encoding.gate.bias[gate]
            )
        return mixed * base ** (-2 * t / size)

    return summed(call, angle)


def carope(encoding: Encoding, call: Call) -> Tensor:
    weight, bias = encoding.frequency.weight, encoding.frequency.bias

    def angle(b: int, h: int, t: int, n: int) -> Tensor:
        return (1 / (softplus(call.x[b, n] @ weight[h] + bias[h]) + 1)) ** t

    return summed(call, angle)


def grape_m_contextual(encoding: Encoding, call: Call, activation: str = "sigmoid") -> Tensor:
    def angle(b: int, h: int, t: int, n: int) -> Tensor:
        logit = call.x[b, n] @ encoding.pace.weight[0] + encoding.pace.bias[0]
        pace = sigmoid(logit / 16) if activation == "sigmoid" else softplus(logit)
        return pace * encoding.log_frequencies[t].exp()

    return summed(call, angle, first=0, last=-1)


def pope(encoding: Encoding, call: Call, base: float = 10000.0) -> Tensor:
    size = call.q.shape[-1]

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for c in range(size):
            lengths = softplus(call.query(b, h, i)[c]) * softplus(call.k[b, h, j, c])
            angle = (call.pos[j] - call.pos[i]) * base ** (-c / size) + encoding.phase[h, c]
            total = total + lengths * angle.cos()
        return total / math.sqrt(size)

    return all_pairs(call, score)


def turned(call: Call, rotation: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Scores q_i^T R_h(p_i)^T R_h(p_j) k_j / sqrt(K)."""
    root = math.sqrt(call.q.shape[-1])

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        q, k = (
            rotation(h, call.pos[i]) @ call.query(b, h, i),
            rotation(h, call.pos[j]) @ call.k[b, h, j],
        )
        return q @ k / root

    return all_pairs(call, score)


def grape_m(encoding: Encoding, call: Call) -> Tensor:
    """A product of rotations by Rodrigues' formula, one for each plane of two channels."""
    size = call.q.shape[-1]

    def rotation(h: int, p: Tensor) -> Tensor:
        whole = torch.eye(size, dtype=torch.float64)
        for t in range(size // 2):
            a, b = torch.eye(size, dtype=torch.float64)[2 * t : 2 * t + 2]
            whole = whole @ rodrigues(b, a, p * (encoding.log_frequencies[t] / 16).exp())
        return whole

    return turned(call, rotation)


def grape_m_mixture(encoding: Encoding, call: Call) -> Tensor:
    def rotation(h: int, p: Tensor) -> Tensor:
        planes = zip(encoding.first[h], encoding.second[h], strict=True)
        return torch.linalg.matrix_exp(
            p * sum(torch.outer(a, b) - torch.outer(b, a) for a, b in planes)
        )

    return turned(call, rotation)


def rodrigues(a: Tensor, b: Tensor, p: Tensor) -> Tensor:
    """exp(p (a b^T - b a^T))"""
    generator = torch.outer(a, b) - torch.outer(b, a)
    s = ((a @ a) * (b @ b) - (a @ b) ** 2).sqrt()
    one = torch.eye(len(a), dtype=torch.float64)
    return one + (p * s).sin() / s * generator + (1 - (p * s).cos()) / s**2 * generator @ generator


def alibi_slope(h: int, heads: int) -> float:
    return float(2 ** (-8 * (h + 1) / heads))  # of a power of two


def grape_a(encoding: Encoding, call: Call, by: str = "key") -> Tensor:
    heads, size, plain = call.q.shape[1], call.q.shape[-1], product_of(call)

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        q, k = call.query(b, h, i), call.k[b, h, j]
        u = encoding.gate[h] / encoding.gate[h].norm()
        chosen = softplus(u @ (q if by == "query" else k) / math.sqrt(size))
        if by == "both":
            v = encoding.query_gate[h] / encoding.query_gate[h].norm()
            chosen = chosen + softplus(v @ q / math.sqrt(size))
        slope = alibi_slope(h, heads) * softplus(encoding.rate[h]) * chosen
        return plain(b, h, i, j) - slope * (call.pos[i] - call.pos[j]).abs()

    return all_pairs(call, score)


def grape_ap(encoding: Encoding, call: Call, size: int = 8) -> Tensor:
    heads, plain = call.q.shape[1], product_of(call)

    def path(b: int, h: int, n: int) -> Tensor:
        return encoding.path.weight[h * size : (h + 1) * size] @ call.x[b, n]

    def edge(b: int, h: int, n: int) -> Tensor:
        p, a = path(b, h, n), call.pos[n]
        p = p / ((p @ p) / size + 1e-6).sqrt()
        pairs = [(x * a.cos() - y * a.sin(), x * a.sin() + y * a.cos()) for x, y in p.view(-1, 2)]
        return torch.stack([side for pair in pairs for side in pair])

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        logs = [sigmoid(path(b, h, i) @ edge(b, h, n) / size).log() for n in range(j + 1, i + 1)]
        return plain(b, h, i, j) + alibi_slope(h, heads) * sum(
            logs, torch.zeros((), dtype=torch.float64)
        )

    return all_pairs(call, score)
