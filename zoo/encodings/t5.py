"""Learned biases for buckets of distances (T5; Raffel et al. 2019, arXiv:1910.10683)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import Dims, Encoding, Lookup, Terms, precise
from zoo.errors import Invalid
from zoo.registry import Between, register


@register
class T5(Encoding):
    """scores + table[bucket(p_i - p_j), h]

    Distances below half of the buckets have one each, longer ones share by their logarithm, all beyond `reach` the last.
    Without a causal mask half of the buckets are for keys ahead. Initial N(0, 1) / sqrt(D).
    """

    relative = True

    def __init__(
        self, dims: Dims, *, buckets: Annotated[int, Between(4)] = 32, reach: Annotated[int, Between(2)] = 128
    ) -> None:
        super().__init__(dims)
        if buckets % 4:
            raise Invalid("buckets", f"buckets {buckets} is not divisible by 4")
        if reach <= buckets // 2:
            raise Invalid("reach", f"reach {reach} must be more than half of the {buckets} buckets")
        self.reach = reach
        self.table = nn.Parameter(torch.randn(buckets, dims.heads) * dims.dim**-0.5)  # [buckets, H]

    def terms(self, terms: Terms) -> Terms:
        def bucket(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return self.bucket(terms.offset(b, i, j)[..., 0].round(), terms.causal)

        return terms.add_bias(Lookup(precise(self.table).mT[None, :, None], bucket))

    def bucket(self, offset: Tensor, causal: bool) -> Tensor:
        """Bucket of each offset p_i - p_j; the logarithm is that of float32."""
        half = len(self.table) if causal else len(self.table) // 2
        distance = offset.clamp(min=0) if causal else offset.abs()
        exact = half // 2
        scaled = (distance.clamp(min=exact).float() / exact).log() / math.log(self.reach / exact) * (half - exact)
        bucket = torch.where(distance < exact, distance.long(), (exact + scaled.long()).clamp(max=half - 1))
        return bucket if causal else bucket + half * (offset < 0)
