"""Relative positions of Transformer-XL: content and place, each with a bias of its own (Dai et al. 2019, arXiv:1901.02860)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import Block, Dims, Encoding, Terms, precise
from zoo.attention.pairs import Span
from zoo.encodings.parts.linear import normal
from zoo.encodings.parts.offsets import steps
from zoo.encodings.parts.seen import Panels, per_head
from zoo.errors import Invalid
from zoo.registry import Between, register


@register
class TransformerXL(Encoding):
    """scores ((q_i + content).k_j + (q_i + place).(W R_{i-j})) / sqrt(K), R_r = [sin(r w) | cos(r w)]

    w_t = base^(-2t/D). A wave of a difference is a product of waves, so the part of place is a factor of rank D.
    """

    shared, relative, causal, reads_keys = False, True, True, True
    axes_because = "its authors define it on distances along a text; alibi and t5 take grids"

    def __init__(self, dims: Dims, *, base: Annotated[float, Between(1)] = 10000.0) -> None:
        super().__init__(dims)
        if dims.dim % 2:
            raise Invalid("name", f"transformer_xl needs an even dim, not {dims.dim}")
        self.base = base
        self.project = normal(nn.Linear(dims.dim, dims.dim, bias=False))  # [H K, D]
        self.content = nn.Parameter(torch.randn(dims.heads, dims.head) * 0.02)
        self.place = nn.Parameter(torch.randn(dims.heads, dims.head) * 0.02)

    def terms(self, terms: Terms) -> Terms:
        content = terms.turn(self.content[:, None].expand(terms.content.shape))  # as wide as k
        sought = terms.content + self.place[:, None].to(terms.content.dtype)  # [B, H, N, K]
        weight = self.project.weight.unflatten(0, (self.dims.heads, -1)).to(terms.content.dtype)  # [H, K, D]
        terms = terms.replace(q=terms.q + content.to(terms.q.dtype))
        if terms.consecutive:
            return terms.add_bias(self._by_step(terms, precise(sought) * terms.scale, weight))
        sine, cosine = precise(sought @ weight).mul(terms.scale).chunk(2, dim=-1)
        rows, columns = (
            one.pos[:, None] * self._ladder(terms) for one in (terms.queries, terms.keys)
        )  # [1|B, 1, N, D/2]
        left = [sine * rows.sin() + cosine * rows.cos(), cosine * rows.sin() - sine * rows.cos()]
        right = [columns.cos(), columns.sin()]
        return terms.add_factor(torch.cat(left, -1), torch.cat(right, -1))

    def _by_step(self, terms: Terms, sought: Tensor, weight: Tensor) -> Block:
        """The part of place where offsets are whole numbers from 0 to M - 1: one projected wave for each."""
        count, step = len(terms.keys), steps(terms)
        waves = torch.arange(count, device=sought.device, dtype=terms.keys.pos.dtype)[:, None] * self._ladder(terms)
        projected = precise(weight) @ torch.cat([waves.sin(), waves.cos()], dim=-1).mT  # [H, K, M]

        def block(span: Span) -> Tensor:
            by_step = span.of_rows(sought) @ projected[..., : span.columns.stop]
            return by_step.gather(-1, terms.grid(step, span).expand(*by_step.shape[:3], -1))

        return Block(block)

    def _ladder(self, terms: Terms) -> Tensor:
        even = torch.arange(0, self.dims.dim, 2, device=terms.keys.pos.device, dtype=terms.keys.pos.dtype)
        return self.base ** (-even / self.dims.dim)

    def findings(self, terms: Terms) -> Panels:
        told = "How large the vector is that stands for every query: beside it, a head tells {} whatever the query is."
        for bias, what in ((self.content, "keys"), (self.place, "distances")):
            yield per_head(f"Bias towards {what}", "norm of the vector", precise(bias).norm(dim=-1), told.format(what))
