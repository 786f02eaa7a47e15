"""Formulas of encodings of sequences, transcribed literally and slowly in float64: pair by pair, step by step.

A reference takes an encoding, for its parameters alone, and a call; what it needs of the encoding's options it is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from zoo.attention.encoding import Encoding

Score = Callable[[int, int, int, int], Tensor]
"""(b, h, i, j) -> the score of a pair; i and j are slots of keys."""

Bias = Callable[[int, Tensor, Tensor], Tensor]
"""(h, position of the query, position of the key) -> what is added to the scaled product."""


@dataclass(frozen=True)
class Call:
    """One attention call. The queries are the last N of the M tokens."""

    q: Tensor  # [B, H, N, K]
    k: Tensor  # [B, H, M, K]
    v: Tensor  # [B, H, M, V]
    pos: Tensor  # [M]
    visible: Tensor  # bool [N, M]
    x: Tensor  # [B, M, D]

    @property
    def shift(self) -> int:
        return self.k.shape[2] - self.q.shape[2]

    def query(self, b: int, h: int, i: int) -> Tensor:
        return self.q[b, h, i - self.shift]

    def seen(self, i: int) -> list[int]:
        """The keys that a query may attend to, in order."""
        return [j for j in range(self.k.shape[2]) if self.visible[i - self.shift, j]]


def all_pairs(call: Call, score: Score) -> Tensor:
    """[B, H, N, M], -inf where a pair is hidden."""
    table = call.q.new_full((*call.q.shape[:3], call.k.shape[2]), float("-inf"))
    for b, h, i in product(*map(range, call.q.shape[:3])):
        for j in call.seen(i + call.shift):
            table[b, h, i, j] = score(b, h, i + call.shift, j)
    return table


def product_of(call: Call) -> Score:
    """q_i.k_j / sqrt(K)"""
    root = math.sqrt(call.q.shape[-1])
    return lambda b, h, i, j: call.query(b, h, i) @ call.k[b, h, j] / root


def biased(call: Call, bias: Bias) -> Tensor:
    plain = product_of(call)
    return all_pairs(call, lambda b, h, i, j: plain(b, h, i, j) + bias(h, call.pos[i], call.pos[j]))


def softmax(scores: Tensor) -> Tensor:
    """Along each row; a row that sees nothing gives nothing."""
    powers = scores.exp()
    return powers / powers.sum(-1, keepdim=True).clamp(min=1e-300)


# biases of distance


NETWORK = ("0.weight", "0.bias", "2.weight", "2.bias")


def alibi(encoding: Encoding) -> Bias:
    def slope(h: int, heads: int) -> float:
        below = 2 ** math.floor(math.log2(heads))
        if h < below:
            return 2 ** (-8 * (h + 1) / below)
        odd = 2 * (h - below) + 1  # the first, third, fifth ... slope of twice as many heads
        return 2 ** (-8 * odd / (2 * below))

    return lambda h, i, j: -slope(h, encoding.dims.heads) * (i - j).abs()


def bucket(distance: int, causal: bool, num_buckets: int = 32, max_distance: int = 128) -> int:
    """Of i - j."""
    half = num_buckets if causal else num_buckets // 2
    base = half if not causal and distance < 0 else 0
    d = max(distance, 0) if causal else abs(distance)
    exact = half // 2
    if d < exact:
        return base + d
    part = (
        torch.tensor(d / exact).log() / math.log(max_distance / exact) * (half - exact)
    )  # in float32
    return base + min(half - 1, exact + math.floor(part))


def t5(encoding: Encoding, causal: bool, num_buckets: int = 32, max_distance: int = 128) -> Bias:
    return lambda h, i, j: encoding.table[bucket(int(i - j), causal, num_buckets, max_distance), h]


def kerple_log(encoding: Encoding) -> Bias:
    p, a = encoding.log_scale.exp(), encoding.log_rate.exp()
    return lambda h, i, j: -p[h] * (1 + a[h] * (i - j).abs()).log()


def kerple_power(encoding: Encoding) -> Bias:
    p, a = 2 / (1 + (-encoding.exponent).exp()), encoding.log_rate.exp()
    return lambda h, i, j: -a[h] * (i - j).abs() ** p[h]


def fire(encoding: Encoding, threshold: float = 512) -> Bias:
    w0, b0, w2, b2 = (dict(encoding.named_parameters())[f"net.{name}"] for name in NETWORK)

    def psi(x: Tensor) -> Tensor:
        return ((encoding.c * x).abs() + 1).log()

    def bias(h: int, i: Tensor, j: Tensor) -> Tensor:
        tau = (encoding.threshold_scale * threshold).abs()
        ratio = psi((i - j).abs()) / (psi(torch.maximum(i, tau)) + 1e-6)
        hidden = [max(w0[n, 0] * ratio + b0[n], torch.zeros(())) for n in range(len(b0))]
        return sum(w2[h, n] * value for n, value in enumerate(hidden)) + b2[h]

    return bias


# relative vectors


def clipped(call: Call, i: int, j: int, max_distance: int) -> int:
    return max(-max_distance, min(max_distance, int(call.pos[j] - call.pos[i]))) + max_distance


def shaw(encoding: Encoding, call: Call, max_distance: int = 16) -> Tensor:
    def score(b: int, h: int, i: int, j: int) -> Tensor:
        key = call.k[b, h, j] + encoding.key[clipped(call, i, j, max_distance)]
        return call.query(b, h, i) @ key / math.sqrt(len(key))

    return all_pairs(call, score)


def shaw_readout(encoding: Encoding, call: Call, weights: Tensor, max_distance: int = 16) -> Tensor:
    """[B, H, N, K], to be added to the output."""
    out = torch.zeros_like(call.q)
    for b, h, i, j in product(*map(range, weights.shape)):
        out[b, h, i] += (
            weights[b, h, i, j] * encoding.value[clipped(call, i + call.shift, j, max_distance)]
        )
    return out


def transformer_xl(encoding: Encoding, call: Call, base: float = 10000.0) -> Tensor:
    width, size = encoding.dims.dim, call.q.shape[-1]

    def place(r: Tensor) -> Tensor:
        angles = torch.stack([r * base ** (-2 * t / width) for t in range(width // 2)])
        return encoding.project.weight @ torch.cat([angles.sin(), angles.cos()])  # [H K]

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        q, k = call.query(b, h, i), call.k[b, h, j]
        r = place(call.pos[i] - call.pos[j])[h * size : (h + 1) * size]
        return ((q + encoding.content[h]) @ k + (q + encoding.place[h]) @ r) / math.sqrt(size)

    return all_pairs(call, score)


def tupe(encoding: Encoding, call: Call, placed: Tensor | None = None) -> Tensor:
    size = call.q.shape[-1]

    def projected(linear: torch.nn.Linear, p: Tensor, h: int) -> Tensor:
        row = encoding.table[int(p)]
        normal = (row - row.mean()) / (row.var(correction=0) + 1e-5).sqrt()
        normal = normal * encoding.norm.weight + encoding.norm.bias
        return (linear.weight @ normal + linear.bias)[h * size : (h + 1) * size]

    def of_places(h: int, i: int, j: int) -> Tensor:
        if placed is not None and not placed[i]:
            return encoding.reset[0, h]
        if placed is not None and not placed[j]:
            return encoding.reset[1, h]
        one, other = (
            projected(encoding.query, call.pos[i], h),
            projected(encoding.key, call.pos[j], h),
        )
        return one @ other / math.sqrt(2 * size)

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        return call.query(b, h, i) @ call.k[b, h, j] / math.sqrt(2 * size) + of_places(h, i, j)

    return all_pairs(call, score)


# rows of scores


def dape(encoding: Encoding, call: Call, bias: Bias) -> Tensor:
    w0, b0, w2, b2 = (dict(encoding.named_parameters())[f"net.{name}"] for name in NETWORK)
    plain, heads = product_of(call), range(call.q.shape[1])

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        a = torch.stack([plain(b, g, i, j) for g in heads])
        added = torch.stack([bias(g, call.pos[i], call.pos[j]) for g in heads])
        hidden = w0 @ torch.cat([a, added]) + b0
        hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
        return a[h] + added[h] + w2[h] @ hidden + b2[h]

    return all_pairs(call, score)


def cope(encoding: Encoding, call: Call, reaching: Score, positions: int = 64) -> Tensor:
    """`reaching` is the score as it reaches the link."""

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        gates = [1 / (1 + (-reaching(b, h, i, t)).exp()) for t in call.seen(i) if j <= t <= i]
        p = min(float(sum(gates)), positions - 1.0)
        z = [call.query(b, h, i) @ row for row in encoding.table]
        rest = p - math.floor(p)
        return reaching(b, h, i, j) + rest * z[math.ceil(p)] + (1 - rest) * z[math.floor(p)]

    return all_pairs(call, score)


# forgetting, and breaking a stick


def fox(encoding: Encoding, call: Call) -> Tensor:
    plain, gate = product_of(call), encoding.gate

    def kept(b: int, h: int, t: int) -> Tensor:
        return 1 / (1 + (-(gate.weight[h] @ call.x[b, t] + gate.bias[h])).exp())

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        return plain(b, h, i, j) + sum(kept(b, h, t).log() for t in range(j + 1, i + 1))

    return all_pairs(call, score)


def stickbreaking(call: Call, inclusive: bool = False) -> tuple[Tensor, Tensor]:
    """Weights [B, H, N, M], and what is left of each stick [B, H, N]: from the nearest key on, each takes its share."""
    plain = product_of(call)
    left = call.q.new_ones(call.q.shape[:3])
    weights = call.q.new_zeros(*left.shape, call.k.shape[2])
    for b, h, row in product(*map(range, left.shape)):
        i = row + call.shift
        for j in reversed(call.seen(i)):
            if j < i or inclusive:
                share = 1 / (1 + (-plain(b, h, i, j)).exp())
                weights[b, h, row, j] = share * left[b, h, row]
                left[b, h, row] *= 1 - share
    return weights, left
