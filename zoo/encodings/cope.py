"""Contextual positions, counted by gates (CoPE; Golovneva et al. 2024, arXiv:2405.18719)."""

from __future__ import annotations

from typing import Annotated, Self

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, Span, upcast
from zoo.attention.backends import reference
from zoo.encodings.common.panels import Panels, head_panel, mean_over_pairs, mean_over_rows
from zoo.registry import Between, register


@register
class CoPE(Encoding):
    """scores + z_i[p_ij], p_ij = min(sum_{t=j..i} sigmoid(scores_it), positions - 1), z_i = q_i table^T

    z is read between floor(p) and ceil(p) linearly. The gates are those of the scores so far; keys that a query does not
    see count nothing.
    """

    shared, shift_invariant, causal_only = False, True, True

    def __init__(self, dims: Dims, *, max_positions: Annotated[int, Between(2)] = 64) -> None:
        super().__init__(dims)
        self.table = nn.Parameter(torch.zeros(max_positions, dims.head_dim))  # [positions, K]

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        positions = len(self.table)
        return (
            value
            if len(value) == positions
            else value[torch.arange(positions).clamp(max=len(value) - 1)]
        )

    def modify(self, call: AttentionCall) -> AttentionCall:
        z = upcast(call.raw_query @ self.table.mT.to(call.raw_query.dtype))  # [B, H, N, positions]

        def rescore(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            counts = self._counts(call, scores, visible, span)[1].clamp(
                max=len(self.table) - 1
            )  # [B, H, n, m]
            below, above = (
                span.slice_queries(z).gather(-1, edge.long())
                for edge in (counts.floor(), counts.ceil())
            )
            return scores + below.lerp(above, counts - counts.floor())

        return call.replace(transform_scores=rescore)

    def panels(self, call: AttentionCall) -> Panels:
        visible, scores = (
            reference.attention_mask(call),
            reference.scores(call.replace(transform_scores=None)),
        )
        gates, counts = self._counts(call, scores, visible, call.full_span)
        told = "How much of a place a token that is seen counts for: near 1 a head counts tokens, near 0 it skips most."
        yield head_panel("Gates", "mean gate, 0 to 1", mean_over_pairs(gates, visible), told)
        told = "What a query has counted at the first key that it sees: far below the number of keys, a head counts few things."
        yield head_panel("Counts reached", "places", mean_over_rows(counts.amax(-1), visible), told)
        told = f"Share of pairs beyond the last of {len(self.table)} places, which look alike: where large, more may help."
        cut = (counts > len(self.table) - 1).to(counts.dtype)
        yield head_panel(
            "Counts that are cut", "share of pairs", mean_over_pairs(cut, visible), told
        )

    def _counts(
        self, call: AttentionCall, scores: Tensor, visible: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        """Gates, and their sums from each key to the query, [B, H, N, M]."""
        past = call.evaluate(lambda b, h, i, j: j <= call.key_index(i), span)
        gates = scores.sigmoid() * (visible & past)
        return gates, gates.flip(-1).cumsum(-1).flip(-1)
