"""Untied positions: places attend to places beside words to words (TUPE; Ke et al. 2020, arXiv:2006.15595)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding, Tokens, upcast
from zoo.encodings.common.layers import apply_linear, init_normal
from zoo.encodings.common.learned_table import ROWS, read_rows, resize_table
from zoo.encodings.common.panels import Panels, head_panel, row_norm_panel
from zoo.registry import Between, register


@register
class TUPE(Encoding):
    """scores (q_i.k_j + query(norm(t_i)).key(norm(t_j))) / sqrt(2K), t = table[p]

    Nothing is added to the input, and the part of place is made once for all layers. For a query without a place it is
    reset[0, h], for a key without one reset[1, h]. The table is read over `stretch` times its length, as learned's is.
    """

    zero_gradient = ("key.bias",)
    handles_special_tokens = True
    axes_reason = "its authors tie a table to the places of a text; learned takes grids"

    def __init__(self, dims: Dims, *, stretch: Annotated[float, Between(1)] = 1.0) -> None:
        super().__init__(dims)
        self.stretch = stretch
        self.table = nn.Parameter(torch.randn(dims.tokens, dims.dim) * 0.02)  # [length, D]
        self.norm = nn.LayerNorm(dims.dim, eps=1e-5)
        self.query, self.key = (init_normal(nn.Linear(dims.dim, dims.dim)) for _ in range(2))
        self.reset = nn.Parameter(torch.zeros(2, dims.heads))

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        return (
            resize_table(value, source.dims.sizes, self.dims.sizes, self.table)
            if name == "table"
            else value
        )

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {"resample": {"stretch": factors[0]}}

    def embed(self, tokens: Tokens) -> Tokens:
        norm, read = (
            self.norm,
            upcast(read_rows(self.table, tokens, self.dims.sizes, self.stretch)),
        )  # [1|B, N, D]
        found = F.layer_norm(
            read, norm.normalized_shape, upcast(norm.weight), upcast(norm.bias), norm.eps
        )
        return tokens.with_per_token(
            place_query=self._heads(self.query, found), place_key=self._heads(self.key, found)
        )

    def modify(self, call: AttentionCall) -> AttentionCall:
        call = call.replace(scale=call.scale * 2**-0.5)
        rows, columns = (
            _placed(one)[:, None, :, None] for one in (call.queries, call.keys)
        )  # [1|B, 1, N, 1]
        first, second = upcast(self.reset)[:, None, :, None, None]  # [1, H, 1, 1]
        left = (
            call.queries.per_token["place_query"].transpose(1, 2) * call.scale * rows
        )  # [1|B, H, N, K]
        right = call.keys.per_token["place_key"].transpose(1, 2) * columns
        one = torch.ones_like(columns[:1, :, :1])
        return (
            call.add_low_rank_bias(left, right)
            .add_low_rank_bias((1 - rows) * first, one)
            .add_low_rank_bias(rows * second, 1 - columns)
        )

    def panels(self, call: AttentionCall) -> Panels:
        yield row_norm_panel("Rows of the table", self.table, self.dims.sizes, ROWS)
        told = "What pairs get, in place of a bias of places, that have a token without one: large ones are sought anywhere."
        for side, values in zip(("Queries", "Keys"), self.reset, strict=True):
            yield head_panel(f"{side} without a place", "added to scores", values, told)

    def _heads(self, project: nn.Linear, x: Tensor) -> Tensor:
        return apply_linear(project, x).unflatten(-1, (self.dims.heads, -1))  # [1|B, N, H, K]


def _placed(tokens: Tokens) -> Tensor:
    return (
        tokens.pos.new_ones(1, len(tokens))
        if tokens.has_position is None
        else tokens.has_position.to(tokens.pos.dtype)
    )
