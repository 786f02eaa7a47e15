"""FIRE: f(psi(|p_i - p_j|) / psi(max(p_i, tau)))_h, psi(x) = log(|c x| + 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from literal.call import Bias
from literal.network import read_network
from zoo.attention.encoding import Encoding


def fire(encoding: Encoding, threshold: float = 512) -> Bias:
    w0, b0, w2, b2 = read_network(encoding)

    def psi(x: Tensor) -> Tensor:
        return ((encoding.c * x).abs() + 1).log()

    def bias(h: int, i: Tensor, j: Tensor) -> Tensor:
        tau = (encoding.threshold_scale * threshold).abs()
        ratio = psi((i - j).abs()) / (psi(torch.maximum(i, tau)) + 1e-6)
        hidden = [max(w0[n, 0] * ratio + b0[n], torch.zeros(())) for n in range(len(b0))]
        return sum(w2[h, n] * value for n, value in enumerate(hidden)) + b2[h]

    return bias
