"""Untied positional scores (TUPE; Ke et al. 2020, arXiv:2006.15595)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding, Tokens, upcast
from zoo.encodings.common.layers import apply_linear, init_normal
from zoo.encodings.common.panels import Panels, head_panel, row_norm_panel
from zoo.encodings.common.position_tables import NORMS_CAPTION, check_range, read_rows, resize_table
from zoo.options import Between
from zoo.registry import register


@register
class TUPE(Encoding):
    """scores (q_i.k_j + query(norm(t_i)).key(norm(t_j))) / sqrt(2K), t = table[p]

    Nothing is added to the input, and the positional part is computed once for all layers. For a
    query without a position it is reset[0, h], for a key without one reset[1, h]. The table is
    resampled to `stretch` times its length, as in learned.

    Args:
        stretch: Factor of the table's length, to which it is resampled for longer texts.
    """

    part = "bias"
    zero_gradient = ("key.bias",)
    handles_special_tokens = True
    axes_reason = "its authors have a table of sequence positions; learned accepts grids"

    def __init__(self, dims: Dims, *, stretch: Annotated[float, Between(1)] = 1.0) -> None:
        super().__init__(dims)
        self.stretch = stretch
        self.table = nn.Parameter(torch.randn(dims.tokens, dims.dim) * 0.02)  # [length, D]
        self.norm = nn.LayerNorm(dims.dim, eps=1e-5)
        self.query = init_normal(nn.Linear(dims.dim, dims.heads * dims.head_dim))
        self.key = init_normal(nn.Linear(dims.dim, dims.heads * dims.head_dim))
        self.reset = nn.Parameter(torch.zeros(2, dims.heads))

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        if name != "table":
            return value
        return resize_table(value, source.dims.sizes, self.dims.sizes, self.table)

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {"resample": {"stretch": factors[0]}}

    def check_positions(self, pos: Tensor, has_position: Tensor | None = None) -> None:
        check_range(pos, round(self.dims.tokens * self.stretch), has_position)

    def embed(self, tokens: Tokens) -> Tokens:
        self.check_positions(tokens.pos, tokens.has_position)
        rows = upcast(read_rows(self.table, tokens, self.dims.sizes, self.stretch))  # [1|B, N, D]
        weight, bias = upcast(self.norm.weight), upcast(self.norm.bias)
        rows = F.layer_norm(rows, self.norm.normalized_shape, weight, bias, self.norm.eps)
        query, key = self._project(self.query, rows), self._project(self.key, rows)
        return tokens.with_per_token(position_query=query, position_key=key)

    def modify(self, call: AttentionCall) -> AttentionCall:
        # Content and positions are two independent sums, so the variance doubles: 1 / sqrt(2K).
        call = call.replace(scale=call.scale * 2**-0.5)
        rows, columns = _position_mask(call.queries), _position_mask(call.keys)  # [1|B, 1, N, 1]
        query_reset, key_reset = upcast(self.reset)[:, None, :, None, None]  # [1, H, 1, 1]
        query = call.queries.per_token["position_query"].transpose(1, 2)  # [1|B, H, N, K]
        key = call.keys.per_token["position_key"].transpose(1, 2)  # [1|B, H, M, K]
        # Three biases: pairs with two positions, queries without one, and keys without one.
        ones = torch.ones_like(columns[:1, :, :1])
        call = call.add_low_rank_bias(query * call.scale * rows, key * columns)
        call = call.add_low_rank_bias((1 - rows) * query_reset, ones)
        return call.add_low_rank_bias(rows * key_reset, 1 - columns)

    def panels(self, call: AttentionCall) -> Panels:
        yield row_norm_panel("Norms of table rows", self.table, self.dims.sizes, NORMS_CAPTION)
        caption = "Score of pairs with a special token: large values attract attention everywhere."
        for side, values in zip(("Queries", "Keys"), self.reset, strict=True):
            yield head_panel(f"{side} without a position", "added to scores", values, caption)

    def _project(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return apply_linear(layer, x).unflatten(-1, (self.dims.heads, -1))  # [1|B, N, H, K]


def _position_mask(tokens: Tokens) -> Tensor:
    """Return 1 for tokens with a position and 0 for others, [1|B, 1, N, 1]."""
    if tokens.has_position is None:
        return tokens.pos.new_ones(1, 1, tokens.x.shape[1], 1)
    return tokens.has_position.to(tokens.pos.dtype)[:, None, :, None]
