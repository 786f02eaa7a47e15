"""Learned biases for buckets of distances (T5; Raffel et al. 2019, arXiv:1910.10683)."""

from __future__ import annotations

import math
from typing import Annotated, Self

import torch
from torch import Tensor, nn

from zoo.attention import Dims, Encoding, Lookup, Terms, precise
from zoo.attention.terms import Index
from zoo.encodings.parts.ladders import per_axis
from zoo.encodings.parts.offsets import along
from zoo.encodings.parts.seen import AXES, Panels, curves
from zoo.errors import Invalid
from zoo.registry import Between, register


@register
class T5(Encoding):
    """scores + table[bucket(p_i - p_j), h]

    Distances below half of the buckets have one each, longer ones share by their logarithm, all beyond `reach` the last.
    Without a causal mask half of the buckets are for keys ahead. Initial N(0, 1) / sqrt(D). On a grid each axis has a table
    of its own, whose biases are added, and half of the buckets for keys ahead under any mask.
    """

    relative = True
    axes = (1, 2, 3)

    def __init__(
        self, dims: Dims, *, buckets: Annotated[int, Between(4)] = 32, reach: Annotated[int, Between(2)] = 128
    ) -> None:
        super().__init__(dims)
        if buckets % 4:
            raise Invalid("buckets", f"buckets {buckets} is not divisible by 4")
        if reach <= buckets // 2:
            raise Invalid("reach", f"reach {reach} must be more than half of the {buckets} buckets")
        self.buckets, self.reach = buckets, reach
        axes = (dims.axes,) if dims.axes > 1 else ()
        self.table = nn.Parameter(
            torch.randn(*axes, buckets, dims.heads) * dims.dim**-0.5
        )  # [buckets, H], [P, buckets, H]

    def carried(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        return per_axis(value, source.dims, self.dims)

    def terms(self, terms: Terms) -> Terms:
        for axis, table in enumerate(self._tables()):
            terms = terms.add_bias(Lookup(table.mT[None, :, None], self._column(terms, axis, self._ahead(terms))))
        return terms

    def findings(self, terms: Terms) -> Panels:
        ahead = self._ahead(terms)
        offsets = torch.arange(-self.reach if ahead else 0, self.reach + 1, device=self.table.device)
        told = "What a bucket adds to scores, over offsets: where a line falls to both sides, a head looks near."
        for axis, table in zip(AXES[self.dims.axes], self._tables(), strict=True):
            x, found = f"query's place - key's place, {axis}", table[self.bucket(offsets, ahead)].mT
            yield curves(f"Buckets of {axis}", x, "added to scores", offsets, found, told)

    def _ahead(self, terms: Terms) -> bool:
        """Whether keys may lie ahead of their query."""
        return not terms.causal or self.dims.axes > 1

    def _tables(self) -> Tensor:
        """[P, buckets, H]"""
        return precise(self.table).view(self.dims.axes, self.buckets, -1)

    def _column(self, terms: Terms, axis: int, ahead: bool) -> Index:
        every = torch.arange(-self.reach, self.reach + 1, device=terms.keys.pos.device)
        buckets, offset = self.bucket(every, ahead), along(terms, axis)
        return lambda b, h, i, j: buckets[(offset(b, h, i, j).round() + self.reach).clamp(0, 2 * self.reach).long()]

    def bucket(self, offset: Tensor, ahead: bool) -> Tensor:
        """Bucket of each whole offset p_i - p_j; the logarithm is that of float32."""
        half = self.buckets // 2 if ahead else self.buckets
        distance = offset.abs() if ahead else offset.clamp(min=0)
        exact = half // 2
        scaled = (distance.clamp(min=exact).float() / exact).log() / math.log(self.reach / exact) * (half - exact)
        bucket = torch.where(distance < exact, distance.long(), (exact + scaled.long()).clamp(max=half - 1))
        return bucket + half * (offset < 0) if ahead else bucket
