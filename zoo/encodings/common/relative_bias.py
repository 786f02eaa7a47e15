"""Buckets of distances: near ones have one each, far ones share by their logarithm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.attention import AttentionCall, BlockBias, Span
from zoo.attention.call import Index
from zoo.attention.tokens import pick
from zoo.errors import OptionError


def check_buckets(buckets: int, reach: int, ahead: bool) -> None:
    """Raise OptionError where no distance is left to share a bucket.

    Where no keys lie `ahead`, twice as many have their own.
    """
    own = buckets // (4 if ahead else 2)
    if reach <= own:
        raise OptionError(
            "max_distance",
            f"max_distance {reach} must be more than {own}, the distances that have a bucket each",
        )


def bucket_table(buckets: int, reach: int, ahead: bool, device: torch.device) -> tuple[int, Tensor]:
    """The first whole offset that is told from others, and the buckets from there up to `reach`."""
    check_buckets(buckets, reach, ahead)
    first = -reach if ahead else 0
    return first, assign_buckets(
        torch.arange(first, reach + 1, device=device), buckets, reach, ahead
    )


def assign_buckets(offset: Tensor, buckets: int, reach: int, ahead: bool) -> Tensor:
    """Bucket of each whole offset p_i - p_j, where keys may lie `ahead` or not; the logarithm is that of float32."""
    half = buckets // 2 if ahead else buckets
    distance = offset.abs() if ahead else offset.clamp(min=0)
    exact = half // 2
    scaled = (
        (distance.clamp(min=exact).float() / exact).log() / math.log(reach / exact) * (half - exact)
    )
    found = torch.where(
        distance < exact, distance.long(), (exact + scaled.long()).clamp(max=half - 1)
    )
    return found + half * (offset < 0) if ahead else found


def index_offsets(call: AttentionCall) -> Index:
    """The same for consecutive tokens, as whole numbers: 0 for keys ahead, which a causal mask hides."""
    return lambda b, h, i, j: (call.key_index(i) - j).clamp(min=0)


def offset_products(call: AttentionCall, queries: Tensor, offsets: Tensor) -> BlockBias:
    """Queries [1|B, 1|H, N, K] times a column of [1|H, K, M] for each offset from 0 on, where tokens are consecutive."""
    column = index_offsets(call)

    def block(span: Span) -> Tensor:
        products = span.slice_queries(queries) @ offsets[..., : span.keys.stop]
        return products.gather(-1, call.evaluate(column, span).expand(*products.shape[:3], -1))

    return BlockBias(block)


def position_offsets(call: AttentionCall, axis: int) -> Index:
    """Position of query i minus position of key j on one axis."""
    queries, keys = (
        tokens.pos[..., axis].contiguous() for tokens in (call.queries, call.keys)
    )  # [1|B, N]
    return lambda b, h, i, j: pick(queries, b, i) - pick(keys, b, j)
