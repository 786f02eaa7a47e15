"""Learned vectors for clipped distances (Shaw et al. 2018, arXiv:1803.02155)."""

from __future__ import annotations

from typing import Annotated, Self

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, Lookup, Span, upcast
from zoo.encodings.common.panels import Panels, curve_panel
from zoo.options import Between
from zoo.registry import register


@register
class Shaw(Encoding):
    """scores q_i.(k_j + key_c) / sqrt(K), output + sum_j w_ij value_c

    c = clip(p_j - p_i, -max_distance, max_distance) + max_distance. Heads share the tables.
    `values` false removes the table of values, so that fused kernels apply. Tables start as
    N(0, 0.02^2). The authors' code draws them, like all matrices of the model, from a uniform
    distribution with variance 2 / (2 max_distance + 1 + K), which is 0.14^2 for 64 channels.

    Args:
        max_distance: Largest distance with a row of its own.
        values: Whether values get vectors too.
    """

    part = "bias"
    shared, shift_invariant = False, True
    axes_reason = "its authors clip distances in sequences; t5 accepts grids"

    def __init__(
        self, dims: Dims, *, max_distance: Annotated[int, Between(1)] = 16, values: bool = True
    ) -> None:
        super().__init__(dims)
        self.max_distance = max_distance
        shape = (2 * max_distance + 1, dims.head_dim)
        self.key = nn.Parameter(torch.randn(shape) * 0.02)  # [2 max_distance + 1, K]
        self.value = nn.Parameter(torch.randn(shape) * 0.02) if values else None

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        if source.max_distance == self.max_distance:
            return value
        offsets = torch.arange(-self.max_distance, self.max_distance + 1)
        return value[offsets.clamp(-source.max_distance, source.max_distance) + source.max_distance]

    def modify(self, call: AttentionCall) -> AttentionCall:
        # The row of a pair in the tables, which are ordered by key position - query position.
        def find_row(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            offset = call.offset(b, i, j)[..., 0].round()
            clipped = offset.clamp(-self.max_distance, self.max_distance)
            return (self.max_distance - clipped).long()

        products = upcast(call.raw_query @ self.key.mT.to(call.raw_query.dtype))
        products = products * call.scale  # [B, H, N, 2 max_distance + 1]
        biased, value = call.add_bias(Lookup(products, find_row)), self.value
        if value is None:
            return biased

        # Sum the weights of each row first: [B, H, n, rows] is smaller than a value per pair.
        def read_values(weights: Tensor, span: Span) -> Tensor:
            rows = call.evaluate(find_row, span).expand(weights.shape)
            shares = weights.new_zeros(*weights.shape[:3], len(value))
            return shares.scatter_add(-1, rows, weights) @ upcast(value)

        return biased.replace(extra_output=read_values)

    def panels(self, call: AttentionCall) -> Panels:
        offsets = torch.arange(-self.max_distance, self.max_distance + 1)
        caption = "Norm of the learned vector of each offset: peaks show which distances matter."
        x = "query position - key position"
        for kind, table in {"Key": self.key, "Value": self.value}.items():
            if table is not None:
                norms = upcast(table).norm(dim=-1).flip(0)[None]  # rows are by key - query
                title = f"{kind} vectors by offset"
                yield curve_panel(title, x, "norm of the vector", offsets, norms, caption)
