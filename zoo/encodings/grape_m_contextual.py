"""RoPE at a pace that tokens choose (contextual GRAPE; Zhang et al. 2025, arXiv:2512.07805)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Tokens, upcast
from zoo.encodings.common.frequencies import axis_frequencies, check_head_dim
from zoo.encodings.common.layers import apply_linear
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.encodings.common.rotation import CumulativeRotary
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register

SCALE = 16  # divisor of the logits of the sigmoid, as in the published code


@register
class GRAPEMContextual(CumulativeRotary):
    """pairs (2t, 2t+1) of q_i rotate by exp(log_frequencies[t]) sum_{l < i} sigmoid(pace(x_l) / 16)

    All heads share one pace, as in the published code; that of RoPE is 1. `activation` softplus
    puts softplus(pace(x_l)) in place of the sigmoid, as in the first version of the code. The
    weight of `pace` starts at zero. Its bias starts at softplus^-1(0.001) with either activation,
    as published: a pace of 0.394 with sigmoid, and of 0.001 with softplus, at which positions
    hardly differ. `initial` sets another initial pace.

    Args:
        base: The frequencies at the start are base^(-2t/K).
        activation: Function of the pace.
        initial: Pace at the start.
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "gates"
    reads_positions = False
    inclusive = False

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 10000.0,
        activation: Literal["sigmoid", "softplus"] = "sigmoid",
        initial: Annotated[float, Between(1e-6, 100)] | None = None,
        turn_values: bool = False,
    ) -> None:
        super().__init__(dims)
        self.turn_values = turn_values
        check_head_dim(self)
        self.activation = activation
        frequencies = axis_frequencies(dims, base, torch.zeros(()))[0]
        self.log_frequencies = nn.Parameter(frequencies.log())  # [K/2]
        self.pace = nn.Linear(dims.dim, 1)
        nn.init.zeros_(self.pace.weight)
        nn.init.constant_(self.pace.bias, _init_bias(activation, initial))

    def prepare(self, tokens: Tokens) -> Tokens:
        logits = apply_linear(self.pace, tokens.x)  # [B, N, 1]
        is_sigmoid = self.activation == "sigmoid"
        pace = (logits / SCALE).sigmoid() if is_sigmoid else F.softplus(logits)
        return tokens.with_per_token(pace=pace)

    def panels(self, call: AttentionCall) -> Panels:
        yield from super().panels(call)
        pace = call.keys.per_token["pace"]
        caption = (
            "Positions that a token counts for, 1 in RoPE: a spread means content sets the pace."
        )
        yield from spread_panel("Pace", "positions per token", pace, call.keys, caption)

    def token_angles(self, tokens: Tokens) -> Tensor:
        frequencies = upcast(self.log_frequencies).exp()
        return tokens.per_token["pace"][..., None] * frequencies  # [B, M, 1, K/2]


def _init_bias(activation: str, initial: float | None) -> float:
    """Return the bias that makes the pace start at `initial`, or the published bias."""
    if activation == "sigmoid" and initial is not None:
        if initial >= 1:
            message = f"initial {initial} is not below 1, but a sigmoid is"
            raise OptionError("initial", f"{message}; choose activation softplus, or less")
        return SCALE * (math.log(initial) - math.log1p(-initial))
    return math.log(math.expm1(1e-3 if initial is None else initial))  # softplus^-1
