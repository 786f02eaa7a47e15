"""Linear biases, slopes chosen by tokens (additive GRAPE; Zhang et al. 2025, arXiv:2512.07805)."""

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

    m_h are the slopes of alibi. `by` query puts q_i in place of k_j. Either is the paper's
    unipotent action of rank 1; if u . k_j is the same for all tokens it is alibi. As in the
    published code, except that its query gates leave out the softplus of the rate. The gates read
    queries and keys as projected, so no encoding before it may have changed them.
    """

    shared, shift_invariant, causal_only, reads_keys = False, True, True, True
    axes_reason = "its authors define it on distances along a text; alibi and t5 accept grids"

    def __init__(self, dims: Dims, *, by: Literal["key", "query"] = "key") -> None:
        super().__init__(dims)
        self.by = by
        inverse_softplus_of_one = math.log(math.expm1(1.0))
        self.rate = nn.Parameter(torch.full((dims.heads,), inverse_softplus_of_one))
        gate = torch.randn(dims.heads, dims.head_dim) * dims.head_dim**-0.5
        self.gate = nn.Parameter(gate)  # [H, K]

    def modify(self, call: AttentionCall) -> AttentionCall:
        if call.q is not call.raw_query:
            problem = "reads queries and keys as projected, but an encoding before it changes them"
            raise OptionError("encoding", f"{self.name} {problem}; list it first")
        by_key = self.by == "key"
        slopes = self._slopes(call.k if by_key else call.q)  # [B, H, M or N, 1]
        if not call.is_ordered:
            gates = slopes[..., 0]
            return call.add_bias(
                lambda b, h, i, j: -gates[b, h, j if by_key else i] * call.distance(b, i, j)
            )
        # relative to the last token: small, and so exact, where it matters
        last = call.keys.pos[:, -1:]
        rows, columns = ((one.pos - last)[:, None] for one in (call.queries, call.keys))
        one = slopes.new_ones(1, 1, 1, 1)
        if by_key:
            return call.add_low_rank_bias(-rows, slopes).add_low_rank_bias(one, columns * slopes)
        return call.add_low_rank_bias(-rows * slopes, one).add_low_rank_bias(slopes, columns)

    def panels(self, call: AttentionCall) -> Panels:
        if call.q is not call.raw_query:  # a later encoding has changed what the gates read
            return
        heads, tokens = (call.k, call.keys) if self.by == "key" else (call.q, call.queries)
        slopes = self._slopes(heads)[..., 0].transpose(1, 2)
        caption = "Penalty per token of distance, chosen by tokens: small ones are attended longer."
        yield from spread_panel("Chosen slopes", "score per token", slopes, tokens, caption)

    def _slopes(self, heads: Tensor) -> Tensor:
        """Return slopes [B, H, M, 1] of heads [B, H, M, K]."""
        gate = F.normalize(upcast(self.gate), dim=-1, eps=1e-6)[:, None]  # [H, 1, K]
        products = (upcast(heads) * gate).sum(-1, keepdim=True)
        chosen = F.softplus(products * self.dims.head_dim**-0.5)
        rates = F.softplus(upcast(self.rate)) * head_slopes(self.dims.heads, chosen)
        return rates[:, None, None] * chosen
