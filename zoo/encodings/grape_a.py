"""Linear biases with learned slopes (additive GRAPE; Zhang et al. 2025, arXiv:2512.07805)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding, upcast
from zoo.encodings.alibi import head_slopes
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.errors import OptionError
from zoo.registry import register


@register
class GRAPEA(Encoding):
    """scores - |p_i - p_j| m_h softplus(rate_h) softplus(u_h . k_j / sqrt(K)), u = gate / |gate|

    m_h are the slopes of alibi. `by` query puts q_i in place of k_j; both, the paper's main form,
    adds softplus(v_h . q_i / sqrt(K)), v = query_gate / |query_gate|, to the softplus of the key.
    Each form is a unipotent action of low rank in the paper, and equals alibi if gates are the same
    for all tokens. The gates read projected queries and keys, which no encoding before it may
    change.

    Args:
        by: Whose states set the gates.
    """

    part = "bias"
    shared, shift_invariant, causal_only, reads_keys = False, True, True, True
    axes_reason = "its authors define it for distances in sequences; alibi and t5 accept grids"

    def __init__(self, dims: Dims, *, by: Literal["key", "query", "both"] = "key") -> None:
        super().__init__(dims)
        self.by = by
        inverse_softplus_of_one = math.log(math.expm1(1.0))
        self.rate = nn.Parameter(torch.full((dims.heads,), inverse_softplus_of_one))
        self.gate = _draw_gate(dims)  # [H, K]
        self.query_gate = _draw_gate(dims) if by == "both" else None

    def modify(self, call: AttentionCall) -> AttentionCall:
        if call.q is not call.raw_query:
            reason = "reads projected queries and keys, but an encoding before it changes them"
            raise OptionError("encoding", f"{self.name} {reason}; list it first")
        for gate, on_key in self._gates():
            call = self._penalize(call, gate, on_key)
        return call

    def panels(self, call: AttentionCall) -> Panels:
        # Another encoding changed the queries and keys that the gates read.
        if call.q is not call.raw_query:
            return
        caption = "Penalty per token of distance, chosen by tokens: small ones extend attention."
        gates = self._gates()
        for gate, on_key in gates:
            heads, tokens = (call.k, call.keys) if on_key else (call.q, call.queries)
            slopes = self._slopes(heads, gate)[..., 0].transpose(1, 2)
            side = f" by {'keys' if on_key else 'queries'}" if len(gates) > 1 else ""
            title = f"Chosen slopes{side}"
            yield from spread_panel(title, "score per token", slopes, tokens, caption)

    def _gates(self) -> list[tuple[Tensor, bool]]:
        """Return the gates [H, K], each with True if it reads keys."""
        if self.query_gate is not None:
            return [(self.gate, True), (self.query_gate, False)]
        return [(self.gate, self.by == "key")]

    def _penalize(self, call: AttentionCall, gate: Tensor, on_key: bool) -> AttentionCall:
        """Add the biases of one gate."""
        slopes = self._slopes(call.k if on_key else call.raw_query, gate)  # [B, H, M or N, 1]
        if not call.is_ordered:
            rates = slopes[..., 0]
            return call.add_bias(
                lambda b, h, i, j: -rates[b, h, j if on_key else i] * call.distance(b, i, j)
            )

        # No key is ahead: s (p_i - p_j) is a sum of two terms of rank 1. Positions relative to the
        # last token stay small, and so exact, for recent tokens.
        latest = call.keys.pos[:, -1:]
        rows, columns = ((tokens.pos - latest)[:, None] for tokens in (call.queries, call.keys))
        ones = slopes.new_ones(1, 1, 1, 1)
        if on_key:
            return call.add_low_rank_bias(-rows, slopes).add_low_rank_bias(ones, columns * slopes)
        return call.add_low_rank_bias(-rows * slopes, ones).add_low_rank_bias(slopes, columns)

    def _slopes(self, heads: Tensor, gate: Tensor) -> Tensor:
        """Return slopes [B, H, M, 1] of heads [B, H, M, K] for a gate [H, K]."""
        direction = F.normalize(upcast(gate), dim=-1, eps=1e-6)[:, None]  # [H, 1, K]
        products = (upcast(heads) * direction).sum(-1, keepdim=True)
        chosen = F.softplus(products * self.dims.head_dim**-0.5)
        rates = F.softplus(upcast(self.rate)) * head_slopes(self.dims.heads, chosen)
        return rates[:, None, None] * chosen


def _draw_gate(dims: Dims) -> nn.Parameter:
    return nn.Parameter(torch.randn(dims.heads, dims.head_dim) * dims.head_dim**-0.5)
