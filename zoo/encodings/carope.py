"""RoPE whose base frequency each token chooses (CARoPE; Veisi et al. 2025, arXiv:2507.23083)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Tokens
from zoo.encodings.common.frequencies import check_head_dim
from zoo.encodings.common.layers import apply_linear
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.encodings.common.rotation import CumulativeRotary
from zoo.options import Between
from zoo.registry import register


@register
class CARoPE(CumulativeRotary):
    """pairs (2t, 2t+1) of q_i rotate by sum_{l <= i} f_l^t, f = 1 / (softplus(frequency(x)) + 1)

    Each head has its own frequency. The paper starts training as RoPE but does not say how: here
    the weight is zero and a bias, which its formula lacks, gives f = base^(-2/K), so that the
    powers f^t are the frequencies of RoPE. Pairs count from 0, as in RoPE.

    Args:
        base: The frequencies at the start are base^(-2t/K).
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "gates"
    reads_positions = False

    def __init__(
        self, dims: Dims, *, base: Annotated[float, Between(2)] = 10000.0, turn_values: bool = False
    ) -> None:
        super().__init__(dims)
        self.turn_values = turn_values
        check_head_dim(self)
        self.frequency = nn.Linear(dims.dim, dims.num_kv_heads)
        nn.init.zeros_(self.frequency.weight)
        # f = base^(-2/K) needs softplus(bias) = base^(2/K) - 1.
        initial = base ** (2 / dims.head_dim) - 1
        nn.init.constant_(
            self.frequency.bias, initial + math.log(-math.expm1(-initial))
        )  # softplus^-1

    def prepare(self, tokens: Tokens) -> Tokens:
        logs = -F.softplus(apply_linear(self.frequency, tokens.x)).log1p()  # [B, N, G]
        return tokens.with_per_token(log_frequency=logs)

    def panels(self, call: AttentionCall) -> Panels:
        yield from super().panels(call)
        base = call.keys.per_token["log_frequency"].exp()
        caption = (
            "Frequency f of tokens, whose powers rotate the pairs: if quantiles differ, it depends"
            " on content."
        )
        title, unit = "Chosen frequencies", "f, 0 to 1"
        yield from spread_panel(title, unit, base, call.keys, caption, kind="key head")

    def token_angles(self, tokens: Tokens) -> Tensor:
        logs = tokens.per_token["log_frequency"][..., None]  # [B, M, G, 1]
        powers = torch.arange(self.dims.head_dim // 2, device=logs.device, dtype=logs.dtype)
        return (logs * powers).exp()
