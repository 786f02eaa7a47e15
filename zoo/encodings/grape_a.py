"""Linear biases whose slopes tokens choose (additive GRAPE; Zhang et al. 2025, arXiv:2512.07805)."""

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
    """scores - |p_i - p_j| m_h softplus(rate_h) softplus(u_h . k_j / sqrt(K)), m_h the slopes of alibi, u = gate / |gate|

    `by` query puts q_i in the place of k_j. Either is the paper's unipotent action of rank 1; with a gate that says the same of
    every token it is alibi. As in the published code, except that its query gates leave out the softplus of the rate. The
    gates read keys and queries as they are projected, so nothing may have turned them.
    """

    shared, shift_invariant, causal_only, reads_keys = False, True, True, True
    axes_reason = "its authors define it on distances along a text; alibi and t5 take grids"

    def __init__(self, dims: Dims, *, by: Literal["key", "query"] = "key") -> None:
        super().__init__(dims)
        self.by = by
        self.rate = nn.Parameter(
            torch.full((dims.heads,), math.log(math.expm1(1.0)))
        )  # softplus^-1(1)
        self.gate = nn.Parameter(
            torch.randn(dims.heads, dims.head_dim) * dims.head_dim**-0.5
        )  # [H, K]

    def modify(self, call: AttentionCall) -> AttentionCall:
        if call.q is not call.raw_query:
            raise OptionError(
                "encoding",
                f"{self.name} reads queries and keys as projected, which a link before it has changed; list it first",
            )
        keyed = self.by == "key"
        slopes = self._slopes(call.k if keyed else call.q)  # [B, H, M or N, 1]
        if not call.is_ordered:
            gates = slopes[..., 0]
            return call.add_bias(
                lambda b, h, i, j: -gates[b, h, j if keyed else i] * call.distance(b, i, j)
            )
        here = call.keys.pos[:, -1:]  # distances from the end are small where they matter
        rows, columns = ((one.pos - here)[:, None] for one in (call.queries, call.keys))
        one = slopes.new_ones(1, 1, 1, 1)
        if keyed:
            return call.add_low_rank_bias(-rows, slopes).add_low_rank_bias(one, columns * slopes)
        return call.add_low_rank_bias(-rows * slopes, one).add_low_rank_bias(slopes, columns)

    def panels(self, call: AttentionCall) -> Panels:
        if call.q is call.raw_query:  # a later link may have turned what the gates have read
            keyed = self.by == "key"
            slopes = self._slopes(call.k if keyed else call.q)[..., 0].transpose(1, 2)
            told = "What a token of distance takes off a score, as tokens choose it: where they differ, some are kept longer."
            yield from spread_panel(
                "Chosen slopes",
                "score per token",
                slopes,
                call.keys if keyed else call.queries,
                told,
            )

    def _slopes(self, heads: Tensor) -> Tensor:
        """[B, H, M, 1] of heads [B, H, M, K]"""
        gate = F.normalize(upcast(self.gate), dim=-1, eps=1e-6)[:, None]  # [H, 1, K]
        chosen = F.softplus((upcast(heads) * gate).sum(-1, keepdim=True) * self.dims.head_dim**-0.5)
        rates = F.softplus(upcast(self.rate)) * head_slopes(self.dims.heads, chosen)
        return rates[:, None, None] * chosen
