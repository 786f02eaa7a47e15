"""Forgetting attention: gates that fade earlier tokens (FoX; Lin et al. 2025, arXiv:2503.02130)."""

from __future__ import annotations

from typing import Annotated

from torch import nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding, Tokens
from zoo.encodings.common.layers import apply_linear, init_normal
from zoo.encodings.common.panels import Panels, half_life_panel, spread_panel
from zoo.options import Between
from zoo.registry import register


@register
class FoX(Encoding):
    """scores + c_i - c_j, c_i = sum_{l <= i} log f_l, f = sigmoid(gate(x))

    As in the published code, weights of `gate` start as N(0, 0.02^2) and its biases at 0, so that
    each token halves the weight of the past. `init_bias` opens the gates: 4 keeps 98 %.
    Cable (arXiv:2503.08067) adds sums of -softplus(h(x)): since log sigmoid(z) = -softplus(-z), it
    is this encoding with h(x) = -gate(x).

    Args:
        init_bias: Bias of the gates at the start.
    """

    part = "gates"
    reads_positions = False
    shared, shift_invariant, causal_only, reads_states = False, True, True, True

    def __init__(
        self, dims: Dims, *, init_bias: Annotated[float, Between(-1e6, 1e6)] = 0.0
    ) -> None:
        super().__init__(dims)
        self.gate = init_normal(nn.Linear(dims.dim, dims.heads))
        nn.init.constant_(self.gate.bias, init_bias)

    def prepare(self, tokens: Tokens) -> Tokens:
        logs = F.logsigmoid(apply_linear(self.gate, tokens.x))  # [B, N, H]
        return tokens.with_per_token(log_forget=tokens.clear_padding(logs))

    def modify(self, call: AttentionCall) -> AttentionCall:
        sums = call.keys.per_token["log_forget"].cumsum(1).mT[..., None]  # [B, H, M, 1]
        # Sums relative to the last token stay small, and so exact, for recent tokens.
        sums = sums - sums[:, :, -1:]
        ones = sums.new_ones(1, 1, 1, 1)
        queries = call.select_queries(sums)
        return call.add_low_rank_bias(queries, ones).add_low_rank_bias(ones, -sums)

    def panels(self, call: AttentionCall) -> Panels:
        logs = call.keys.per_token["log_forget"]
        caption = "Factor of earlier tokens at each token: near 1 a head keeps the past."
        yield from spread_panel("Forget gates", "gate, 0 to 1", logs.exp(), call.keys, caption)
        caption = "Number of tokens that halve the weight of earlier ones: small for local heads."
        yield from half_life_panel(logs, call.keys, caption)
