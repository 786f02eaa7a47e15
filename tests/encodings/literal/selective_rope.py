"""Selective RoPE: pairs rotate by the sum of w_t c_l, c = kernel * out(into(x))."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from literal.call import Call
from literal.functions import sigmoid
from literal.token_angles import score_token_angles
from zoo.attention.encoding import Encoding


def selective_rope(
    encoding: Encoding, call: Call, base: float = 500000.0, silu: bool = False
) -> Tensor:
    heads, size = call.q.shape[1], call.q.shape[-1]
    groups = encoding.dims.kv_heads or heads

    @cache
    def normalize(b: int, n: int) -> Tensor:
        shares = [x / x.norm() for x in call.x[b, n].split(size)]
        return torch.cat(shares)

    @cache
    def compress(b: int, n: int) -> Tensor:
        return encoding.into.weight @ normalize(b, n)

    def angle(b: int, h: int, t: int, n: int) -> Tensor:
        channel = (h * groups // heads) * (size // 2) + t
        mixed = torch.zeros((), dtype=torch.float64)
        for back in range(min(len(encoding.kernel), n + 1)):
            mixed = mixed + encoding.kernel[back, channel] * (
                encoding.out.weight[channel] @ compress(b, n - back)
            )
        if silu:
            mixed = mixed * sigmoid(mixed)
        if encoding.gate is not None:
            gate = h * groups // heads
            mixed = mixed * sigmoid(
                encoding.gate.weight[gate] @ normalize(b, n) + encoding.gate.bias[gate]
            )
        return mixed * base ** (-2 * t / size)

    return score_token_angles(call, angle)
