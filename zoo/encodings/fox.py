"""Forgetting attention: a gate at each token dims what came before (FoX; Lin et al. 2025, arXiv:2503.02130)."""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding, Tokens
from zoo.encodings.common.layers import apply_linear, init_normal
from zoo.encodings.common.panels import Panels, half_life_panel, spread_panel
from zoo.registry import register


@register
class FoX(Encoding):
    """scores + c_i - c_j, c_i = sum_{l <= i} log f_l, f = sigmoid(gate(x))"""

    shared, shift_invariant, causal_only = False, True, True

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.gate = init_normal(nn.Linear(dims.dim, dims.heads))

    def prepare(self, tokens: Tokens) -> Tokens:
        return tokens.with_per_token(
            log_forget=F.logsigmoid(apply_linear(self.gate, tokens.x))
        )  # [B, N, H]

    def panels(self, call: AttentionCall) -> Panels:
        logs = call.keys.per_token["log_forget"]
        told = "How much of what came before a token lets through: near 1 a head keeps the past, near 0 it starts anew."
        yield from spread_panel("Forget gates", "gate, 0 to 1", logs.exp(), call.keys, told)
        told = "How many tokens halve the weight of what came before, on average: heads of few tokens look near."
        yield from half_life_panel(logs, call.keys, told)

    def modify(self, call: AttentionCall) -> AttentionCall:
        sums = call.keys.per_token["log_forget"].cumsum(1).mT[..., None]  # [B, H, M, 1]
        sums = sums - sums[:, :, -1:]  # from the end: small where it matters
        one = sums.new_ones(1, 1, 1, 1)
        return call.add_low_rank_bias(call.select_queries(sums), one).add_low_rank_bias(one, -sums)
