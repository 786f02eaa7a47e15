"""Learned biases for buckets of distances (T5; Raffel et al. 2019, arXiv:1910.10683)."""

from __future__ import annotations

from typing import Annotated, Self

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, Lookup, upcast
from zoo.attention.call import Index
from zoo.encodings.common.frequencies import adapt_axes
from zoo.encodings.common.panels import AXES, Panels, curve_panel
from zoo.encodings.common.position_tables import (
    bias_from_offsets,
    bucket_table,
    check_buckets,
    has_bias_of_offsets,
    position_offsets,
)
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class T5(Encoding):
    """scores + table[bucket(p_i - p_j), h]

    Half of the buckets hold one short distance each; longer distances share the others by their
    logarithm, and all beyond `max_distance` share the last. Without a causal mask half of the
    buckets are for keys ahead. Tables start as N(0, 1) / sqrt(D), as in Hugging Face's code; T5X
    draws from a uniform distribution with variance 2 / (num_buckets + H), about 0.2^2. On a grid
    each axis has its own table and the biases are added; half of the buckets are then for keys
    ahead under any mask.

    Args:
        num_buckets: Rows of the table.
        max_distance: Distance from which all share the last bucket, in tokens or patches.
    """

    part = "bias"
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
        check_buckets(num_buckets, max_distance, keys_ahead=True)
        axes = (dims.axes,) if dims.axes > 1 else ()
        table = torch.randn(*axes, num_buckets, dims.heads)  # [buckets, H] or [P, buckets, H]
        self.table = nn.Parameter(table * dims.dim**-0.5)

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        return adapt_axes(value, source.dims, self.dims)

    def modify(self, call: AttentionCall) -> AttentionCall:
        biases = [
            Lookup(table.mT[None, :, None], self._bucket(call, axis))
            for axis, table in enumerate(self._tables())
        ]
        if not has_bias_of_offsets(call):
            return call.replace(biases=(*call.biases, *biases))
        lowest, buckets = self._bucket_table(call)
        offsets = torch.arange(call.k.shape[2], device=buckets.device)
        columns = buckets[(offsets - lowest).clamp(max=self.max_distance - lowest)]
        values = self._tables()[0].mT[:, columns]
        return call.add_bias(bias_from_offsets(call, values, biases[0]))

    def panels(self, call: AttentionCall) -> Panels:
        lowest, buckets = self._bucket_table(call)
        offsets = lowest + torch.arange(len(buckets))
        caption = "Bias of each offset: a line that falls to both sides belongs to a local head."
        for axis, table in zip(AXES[self.dims.axes], self._tables(), strict=True):
            title, x = f"Bias by offset, {axis}", f"query position - key position, {axis}"
            lines = table[buckets].mT
            yield curve_panel(title, x, "added to scores", offsets, lines, caption)

    def _tables(self) -> Tensor:
        return upcast(self.table).view(self.dims.axes, self.num_buckets, -1)  # [P, buckets, H]

    def _bucket(self, call: AttentionCall, axis: int) -> Index:
        # Buckets of all offsets from `lowest` to max_distance are tabulated; others are clamped.
        (lowest, buckets), offset = self._bucket_table(call), position_offsets(call, axis)
        highest = self.max_distance - lowest
        return lambda b, h, i, j: buckets[
            (offset(b, h, i, j).round() - lowest).clamp(0, highest).long()
        ]

    def _bucket_table(self, call: AttentionCall) -> tuple[int, Tensor]:
        keys_ahead = not call.causal or self.dims.axes > 1
        device = call.keys.pos.device
        return bucket_table(self.num_buckets, self.max_distance, keys_ahead, device)
