"""Relative position representations, learned vectors by clipped distance (Shaw et al. 2018, arXiv:1803.02155)."""

from __future__ import annotations

from typing import Annotated, Self

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, Lookup, Span, upcast
from zoo.encodings.common.panels import Panels, curve_panel
from zoo.registry import Between, register


@register
class Shaw(Encoding):
    """scores q_i.(k_j + key_c) / sqrt(K), output + sum_j w_ij value_c, c = clip(p_j - p_i, -reach, reach) + reach

    Heads share the tables. `values` false leaves the values as they are, and with them the fused kernels.
    """

    shared, shift_invariant = False, True
    axes_reason = "its authors clip distances along a text; t5 takes grids"

    def __init__(
        self, dims: Dims, *, max_distance: Annotated[int, Between(1)] = 16, values: bool = True
    ) -> None:
        super().__init__(dims)
        self.max_distance = max_distance
        self.key = nn.Parameter(
            torch.randn(2 * max_distance + 1, dims.head_dim) * 0.02
        )  # [2 reach + 1, K]
        self.value = (
            nn.Parameter(torch.randn(2 * max_distance + 1, dims.head_dim) * 0.02)
            if values
            else None
        )

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        if source.max_distance == self.max_distance:
            return value
        offsets = torch.arange(-self.max_distance, self.max_distance + 1)
        return value[offsets.clamp(-source.max_distance, source.max_distance) + source.max_distance]

    def modify(self, call: AttentionCall) -> AttentionCall:
        def column(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (
                self.max_distance
                - call.offset(b, i, j)[..., 0].round().clamp(-self.max_distance, self.max_distance)
            ).long()

        products = (
            upcast(call.raw_query @ self.key.mT.to(call.raw_query.dtype)) * call.scale
        )  # [B, H, N, 2 reach + 1]
        biased, value = call.add_bias(Lookup(products, column)), self.value
        if value is None:
            return biased

        def readout(weights: Tensor, span: Span) -> Tensor:
            columns = call.evaluate(column, span).expand(weights.shape)
            shares = weights.new_zeros(*weights.shape[:3], len(value)).scatter_add(
                -1, columns, weights
            )
            return shares @ upcast(value)

        return biased.replace(extra_output=readout)

    def panels(self, call: AttentionCall) -> Panels:
        offsets = torch.arange(-self.max_distance, self.max_distance + 1)
        told = "How large the learned vector of each offset is: a peak tells where a layer looks for place, a flat one not."
        for what, table in {"Keys": self.key, "Values": self.value}.items():
            if table is not None:
                norms = upcast(table).norm(dim=-1).flip(0)[None]  # rows go by key - query
                x = "query's place - key's place, in tokens"
                yield curve_panel(
                    f"{what} of offsets", x, "norm of the vector", offsets, norms, told
                )
