"""RoPE whose base frequency each token chooses for each head (CARoPE; Veisi et al. 2025, arXiv:2507.23083)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Tokens
from zoo.encodings.common.frequencies import check_pairs
from zoo.encodings.common.layers import apply_linear
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.encodings.common.rotation import CumulativeRotary
from zoo.registry import Between, register


@register
class CARoPE(CumulativeRotary):
    """pairs (2t, 2t+1) of q_i turn by sum_{l <= i} f_l^t, f = 1 / (softplus(frequency(x)) + 1), a frequency per head

    Starts as RoPE, as the paper says; it does not say how. Here the weight is zero and a bias, which its formula lacks, gives
    f = base^(-2/K), so that f^t are the frequencies of RoPE. Pairs count from 0, as RoPE's do.
    """

    def __init__(self, dims: Dims, *, base: Annotated[float, Between(2)] = 10000.0) -> None:
        super().__init__(dims)
        check_pairs(dims)
        self.frequency = nn.Linear(dims.dim, dims.num_kv_heads)
        nn.init.zeros_(self.frequency.weight)
        nn.init.constant_(
            self.frequency.bias, _unsoftened(base ** (2 / dims.head_dim) - 1)
        )  # softplus^-1

    def prepare(self, tokens: Tokens) -> Tokens:
        return tokens.with_per_token(
            log_frequency=-F.softplus(apply_linear(self.frequency, tokens.x)).log1p()
        )  # [B, N, G]

    def panels(self, call: AttentionCall) -> Panels:
        base = call.keys.per_token["log_frequency"].exp()
        told = "The frequency f that tokens choose, whose powers turn the pairs: where tokens differ, content sets the pace."
        yield from super().panels(call)
        yield from spread_panel(
            "Chosen frequencies", "f, 0 to 1", base, call.keys, told, kind="key head"
        )

    def token_angles(self, tokens: Tokens) -> Tensor:
        logs = tokens.per_token["log_frequency"][..., None]  # [B, M, G, 1]
        return (
            logs * torch.arange(self.dims.head_dim // 2, device=logs.device, dtype=logs.dtype)
        ).exp()


def _unsoftened(y: float) -> float:
    """x such that softplus(x) = y"""
    return y + math.log(-math.expm1(-y))
