"""Contextual positions that gates count (CoPE; Golovneva et al. 2024, arXiv:2405.18719)."""

from __future__ import annotations

from typing import Annotated, Self

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, Span, upcast
from zoo.attention.backends import reference
from zoo.encodings.common.interpolation import interpolate_entries
from zoo.encodings.common.panels import Panels, head_panel, mean_over_pairs, mean_over_rows
from zoo.encodings.common.suffix_sums import sum_suffixes
from zoo.options import Between
from zoo.registry import register


@register
class CoPE(Encoding):
    """scores + z_i[p_ij], p_ij = min(sum_{t=j..i} sigmoid(scores_it), max_positions - 1)

    z_i = q_i table^T is interpolated linearly between floor(p) and ceil(p). Gates come from the
    scores so far; hidden keys are not counted. The table starts at zero, as in the paper's listing
    and the authors' code. By default that code also divides z by sqrt(K); the listing does not. Two
    other methods are named CoPE: the clipped RoPE of arXiv:2602.05258, which is the rule `clipped`
    of `rope`, and the complex positional encoding of arXiv:2508.18308.

    Args:
        max_positions: Rows of the table; larger counts read the last.
    """

    part = "rows"
    reads_positions = False
    shared, shift_invariant, causal_only = False, True, True

    def __init__(self, dims: Dims, *, max_positions: Annotated[int, Between(2)] = 64) -> None:
        super().__init__(dims)
        self.table = nn.Parameter(torch.zeros(max_positions, dims.head_dim))  # [positions, K]

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        # More positions repeat the last row, where counts were clamped in training.
        if len(value) == len(self.table):
            return value
        return value[torch.arange(len(self.table)).clamp(max=len(value) - 1)]

    def modify(self, call: AttentionCall) -> AttentionCall:
        z = upcast(call.raw_query @ self.table.mT.to(call.raw_query.dtype))  # [B, H, N, positions]

        def add_positions(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            counts = self._count(call, scores, visible, span)[1]  # [B, H, n, m]
            return scores + interpolate_entries(span.slice_queries(z), counts)

        return call.replace(transform_scores=add_positions)

    def panels(self, call: AttentionCall) -> Panels:
        visible = reference.attention_mask(call)
        scores = reference.scores(call.replace(transform_scores=None))
        gates, counts = self._count(call, scores, visible, call.full_span)

        caption = "Mean gate of visible keys: near 1 a head counts tokens, near 0 it skips most."
        mean = mean_over_pairs(gates, visible)
        yield head_panel("Gates", "mean gate, 0 to 1", mean, caption)

        caption = (
            "Position of the first visible key: if far below the number of keys, few are counted."
        )
        mean = mean_over_rows(counts.amax(-1), visible)
        yield head_panel("Positions counted", "positions", mean, caption)

        largest = len(self.table) - 1
        caption = (
            f"Pairs beyond the last of {largest + 1} positions, which the head cannot tell apart."
        )
        mean = mean_over_pairs((counts > largest).to(counts.dtype), visible)
        yield head_panel("Clamped positions", "share of pairs", mean, caption)

    def _count(
        self, call: AttentionCall, scores: Tensor, visible: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        """Return gates, and their sums from each key to the query, [B, H, N, M]."""
        # A causal mask hides the keys after the query already.
        if not call.causal:
            visible = visible & call.evaluate(lambda b, h, i, j: j <= call.key_index(i), span)
        gates = scores.sigmoid() * visible.to(scores.dtype)
        # Sums run from the query back to the key.
        return gates, sum_suffixes(gates)
