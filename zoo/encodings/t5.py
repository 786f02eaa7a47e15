"""Learned biases for buckets of distances (T5; Raffel et al. 2019, arXiv:1910.10683)."""

from __future__ import annotations

from typing import Annotated, Self

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, Lookup, upcast
from zoo.attention.call import Index
from zoo.encodings.common.frequencies import adapt_axes
from zoo.encodings.common.panels import AXES, Panels, curve_panel
from zoo.encodings.common.relative_bias import bucket_table, check_buckets, position_offsets
from zoo.errors import OptionError
from zoo.registry import Between, register


@register
class T5(Encoding):
    """scores + table[bucket(p_i - p_j), h]

    Distances below half of the buckets have one each, longer ones share by their logarithm, all beyond `reach` the last.
    Without a causal mask half of the buckets are for keys ahead. Initial N(0, 1) / sqrt(D). On a grid each axis has a table
    of its own, whose biases are added, and half of the buckets for keys ahead under any mask.
    """

    shift_invariant = True
    axes = (1, 2, 3)

    def __init__(
        self,
        dims: Dims,
        *,
        num_buckets: Annotated[int, Between(4)] = 32,
        max_distance: Annotated[int, Between(2)] = 128,
    ) -> None:
        super().__init__(dims)
        if num_buckets % 2:
            raise OptionError("num_buckets", f"num_buckets {num_buckets} is not even")
        self.num_buckets, self.max_distance = num_buckets, max_distance
        check_buckets(num_buckets, max_distance, ahead=True)
        axes = (dims.axes,) if dims.axes > 1 else ()
        table = torch.randn(*axes, num_buckets, dims.heads)  # [buckets, H], [P, buckets, H]
        self.table = nn.Parameter(table * dims.dim**-0.5)

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        return adapt_axes(value, source.dims, self.dims)

    def modify(self, call: AttentionCall) -> AttentionCall:
        for axis, table in enumerate(self._tables()):
            call = call.add_bias(Lookup(table.mT[None, :, None], self._column(call, axis)))
        return call

    def panels(self, call: AttentionCall) -> Panels:
        first, buckets = self._buckets(call)
        offsets = first + torch.arange(len(buckets))
        told = "What a bucket adds to scores, over offsets: where a line falls to both sides, a head looks near."
        for axis, table in zip(AXES[self.dims.axes], self._tables(), strict=True):
            x = f"query's place - key's place, {axis}"
            yield curve_panel(
                f"Buckets of {axis}", x, "added to scores", offsets, table[buckets].mT, told
            )

    def _tables(self) -> Tensor:
        return upcast(self.table).view(self.dims.axes, self.num_buckets, -1)  # [P, buckets, H]

    def _column(self, call: AttentionCall, axis: int) -> Index:
        (first, buckets), offset = self._buckets(call), position_offsets(call, axis)
        return lambda b, h, i, j: buckets[
            (offset(b, h, i, j).round() - first).clamp(0, self.max_distance - first).long()
        ]

    def _buckets(self, call: AttentionCall) -> tuple[int, Tensor]:
        ahead = not call.causal or self.dims.axes > 1  # whether keys may lie ahead of their query
        return bucket_table(self.num_buckets, self.max_distance, ahead, call.keys.pos.device)
