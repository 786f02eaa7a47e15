"""RoPE at a pace that tokens choose (contextual multiplicative GRAPE; Zhang et al. 2025, arXiv:2512.07805)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Tokens, upcast
from zoo.encodings.common.frequencies import axis_frequencies, check_pairs
from zoo.encodings.common.layers import apply_linear
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.encodings.common.rotation import CumulativeRotary
from zoo.registry import Between, register


@register
class GRAPEMContextual(CumulativeRotary):
    """pairs (2t, 2t+1) of q_i turn by exp(log_frequencies[t]) sum_{l < i} softplus(pace(x_l)), one pace for all heads

    As the published code trains it. Paces are small at first: `initial`, where RoPE's is 1. The weight of `pace` is zero
    at first, as the code's module makes it.
    """

    inclusive = False

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 10000.0,
        initial: Annotated[float, Between(1e-6, 100)] = 1e-3,
    ) -> None:
        super().__init__(dims)
        check_pairs(dims)
        self.log_frequencies = nn.Parameter(
            axis_frequencies(dims, base, torch.zeros(()))[0].log()
        )  # [K/2]
        self.pace = nn.Linear(dims.dim, 1)
        nn.init.zeros_(self.pace.weight)
        nn.init.constant_(self.pace.bias, math.log(math.expm1(initial)))  # softplus^-1

    def prepare(self, tokens: Tokens) -> Tokens:
        return tokens.with_per_token(
            pace=F.softplus(apply_linear(self.pace, tokens.x))
        )  # [B, N, 1]

    def panels(self, call: AttentionCall) -> Panels:
        told = "How many places a token goes ahead, 1 in RoPE: where tokens differ, content sets the pace."
        yield from super().panels(call)
        yield from spread_panel(
            "Pace", "places per token", call.keys.per_token["pace"], call.keys, told
        )

    def token_angles(self, tokens: Tokens) -> Tensor:
        return (
            tokens.per_token["pace"][..., None] * upcast(self.log_frequencies).exp()
        )  # [B, M, 1, K/2]
