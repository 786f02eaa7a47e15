"""FIRE: f(psi(|p_i - p_j|) / psi(max(p_i, tau)))_h, psi(x) = log(|c x| + 1).

On a grid the farthest distance from the query to a key that it sees takes the place of p_i.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from literal.call import Bias
from literal.network import read_network
from zoo.attention.encoding import Encoding


def fire(encoding: Encoding, threshold: float = 512) -> Bias:
    ratio_bias = fire_of_ratio(encoding, threshold)
    return lambda h, i, j: ratio_bias(h, i, (i - j).abs())


def fire_on_grid(encoding: Encoding, pos: Tensor, visible: Tensor, threshold: float) -> Tensor:
    """The biases [H, N, N] at coordinates [N, P], -inf where a pair is not visible [N, N]."""
    ratio_bias = fire_of_ratio(encoding, threshold)
    heads, count = encoding.dims.heads, len(pos)
    table = pos.new_full((heads, count, count), -math.inf)
    for i in range(count):
        seen = [j for j in range(count) if visible[i, j]]
        distances = {j: pos.new_tensor(math.dist(pos[i].tolist(), pos[j].tolist())) for j in seen}
        farthest = max(distances.values(), default=pos.new_zeros(()))
        for h in range(heads):
            for j in seen:
                table[h, i, j] = ratio_bias(h, farthest, distances[j])
    return table


def fire_of_ratio(encoding: Encoding, threshold: float) -> Bias:
    """Return f(psi(distance) / psi(max(largest, tau)))_h as a function of h, largest and distance."""
    w0, b0, w2, b2 = read_network(encoding)

    def psi(x: Tensor) -> Tensor:
        return ((encoding.c * x).abs() + 1).log()

    def bias(h: int, largest: Tensor, distance: Tensor) -> Tensor:
        tau = (encoding.threshold_scale * threshold).abs()
        ratio = psi(distance) / (psi(torch.maximum(largest, tau)) + 1e-6)
        hidden = [max(w0[n, 0] * ratio + b0[n], torch.zeros(())) for n in range(len(b0))]
        return sum(w2[h, n] * value for n, value in enumerate(hidden)) + b2[h]

    return bias
