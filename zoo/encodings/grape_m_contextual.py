"""RoPE at a pace chosen by tokens (contextual GRAPE; Zhang et al. 2025, arXiv:2512.07805)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Tokens, upcast
from zoo.encodings.common.frequencies import axis_frequencies, check_head_dim
from zoo.encodings.common.layers import apply_linear
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.encodings.common.rotation import CumulativeRotary
from zoo.registry import Between, register


@register
class GRAPEMContextual(CumulativeRotary):
    """pairs (2t, 2t+1) of q_i rotate by exp(log_frequencies[t]) sum_{l < i} softplus(pace(x_l))

    One pace serves all heads, as the published code trains it. Paces start at `initial`, where
    RoPE's is 1; the weight of `pace` starts at zero.
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
        check_head_dim(self)
        frequencies = axis_frequencies(dims, base, torch.zeros(()))[0]
        self.log_frequencies = nn.Parameter(frequencies.log())  # [K/2]
        self.pace = nn.Linear(dims.dim, 1)
        nn.init.zeros_(self.pace.weight)
        nn.init.constant_(self.pace.bias, math.log(math.expm1(initial)))  # softplus^-1

    def prepare(self, tokens: Tokens) -> Tokens:
        pace = F.softplus(apply_linear(self.pace, tokens.x))  # [B, N, 1]
        return tokens.with_per_token(pace=pace)

    def panels(self, call: AttentionCall) -> Panels:
        yield from super().panels(call)
        pace = call.keys.per_token["pace"]
        caption = (
            "Positions that a token counts for, 1 in RoPE: spread means content sets the pace."
        )
        yield from spread_panel("Pace", "positions per token", pace, call.keys, caption)

    def token_angles(self, tokens: Tokens) -> Tensor:
        frequencies = upcast(self.log_frequencies).exp()
        return tokens.per_token["pace"][..., None] * frequencies  # [B, M, 1, K/2]
