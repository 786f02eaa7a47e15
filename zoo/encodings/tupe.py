"""Untied positions: places attend to places beside words to words (TUPE; Ke et al. 2020, arXiv:2006.15595)."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import Dims, Encoding, Terms, Tokens, precise
from zoo.encodings.parts.linear import linear, normal
from zoo.encodings.parts.seen import Panels, per_head, sizes
from zoo.encodings.parts.table import resized, rows
from zoo.registry import register


@register
class TUPE(Encoding):
    """scores (q_i.k_j + query(norm(t_i)).key(norm(t_j))) / sqrt(2K), t = table[p]

    Nothing is added to the input, and the part of place is made once for all layers. For a query without a place it is
    reset[0, h], for a key without one reset[1, h].
    """

    row_constant = ("key.bias",)
    unplaced = True
    axes_because = "its authors tie a table to the places of a text; learned takes grids"

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.table = nn.Parameter(torch.randn(dims.tokens, dims.dim) * 0.02)  # [length, D]
        self.norm = nn.LayerNorm(dims.dim, eps=1e-5)
        self.query = normal(nn.Linear(dims.dim, dims.dim))
        self.key = normal(nn.Linear(dims.dim, dims.dim))
        self.reset = nn.Parameter(torch.zeros(2, dims.heads))

    def carried(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        return resized(value, source.dims.sizes, self.dims.sizes, self.table) if name == "table" else value

    def embed(self, tokens: Tokens) -> Tokens:
        gain, shift, eps = precise(self.norm.weight), precise(self.norm.bias), self.norm.eps
        found = F.layer_norm(
            precise(rows(self.table, tokens, self.dims.sizes)), gain.shape, gain, shift, eps
        )  # [1|B, N, D]
        return tokens.note(place_query=self._heads(self.query, found), place_key=self._heads(self.key, found))

    def terms(self, terms: Terms) -> Terms:
        scale = terms.scale * 2**-0.5
        placed = [
            one.pos.new_ones(1, len(one)) if one.placed is None else one.placed.to(one.pos.dtype)
            for one in (terms.queries, terms.keys)
        ]
        rows, columns = (one[:, None, :, None] for one in placed)  # [1|B, 1, N, 1]
        first, second = precise(self.reset)[:, None, :, None, None]  # [1, H, 1, 1]
        left = terms.queries.notes["place_query"].transpose(1, 2) * scale * rows  # [1|B, H, N, K]
        right = terms.keys.notes["place_key"].transpose(1, 2) * columns
        one = torch.ones_like(columns[:1, :, :1])
        terms = terms.replace(scale=scale).add_factor(left, right).add_factor((1 - rows) * first, one)
        return terms.add_factor(rows * second, 1 - columns)

    def findings(self, terms: Terms) -> Panels:
        told = "How large the learned vector of each place is: places seldom trained on stay as they began."
        yield sizes("Rows of the table", self.table, self.dims.sizes, told)
        told = "What pairs get, in place of a bias of places, that have a token without one: large ones are sought anywhere."
        for side, values in zip(("Queries", "Keys"), self.reset, strict=True):
            yield per_head(f"{side} without a place", "added to scores", values, told)

    def _heads(self, project: nn.Linear, x: Tensor) -> Tensor:
        return linear(project, x).unflatten(-1, (self.dims.heads, -1))  # [1|B, N, H, K]
