"""Biases of relative positions: T5's buckets of distances, and products looked up by offset."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.attention import AttentionCall, BlockBias, Span
from zoo.attention.call import Index
from zoo.attention.tokens import pick
from zoo.errors import OptionError


def check_buckets(num_buckets: int, max_distance: int, keys_ahead: bool) -> None:
    """Raise OptionError if no distances are left to share a bucket."""
    exact = num_buckets // (4 if keys_ahead else 2)
    if max_distance <= exact:
        problem = f"must be more than {exact}, the distances that have a bucket each"
        raise OptionError("max_distance", f"t5: max_distance {max_distance} {problem}")


def bucket_table(
    num_buckets: int, max_distance: int, keys_ahead: bool, device: torch.device
) -> tuple[int, Tensor]:
    """Return the first offset that has a bucket, and the buckets from there to max_distance."""
    check_buckets(num_buckets, max_distance, keys_ahead)
    first = -max_distance if keys_ahead else 0
    offsets = torch.arange(first, max_distance + 1, device=device)
    return first, assign_buckets(offsets, num_buckets, max_distance, keys_ahead)


def assign_buckets(offset: Tensor, num_buckets: int, max_distance: int, keys_ahead: bool) -> Tensor:
    """Return the bucket of each whole offset p_i - p_j, with logarithms in float32."""
    half = num_buckets // 2 if keys_ahead else num_buckets
    distance = offset.abs() if keys_ahead else offset.clamp(min=0)
    exact = half // 2
    logs = (distance.clamp(min=exact).float() / exact).log() / math.log(max_distance / exact)
    shared = (exact + (logs * (half - exact)).long()).clamp(max=half - 1)
    buckets = torch.where(distance < exact, distance.long(), shared)
    return buckets + half * (offset < 0) if keys_ahead else buckets


def index_offsets(call: AttentionCall) -> Index:
    """Return offsets of consecutive tokens, and 0 for keys ahead, which a causal mask hides."""
    return lambda b, h, i, j: (call.key_index(i) - j).clamp(min=0)


def offset_products(call: AttentionCall, queries: Tensor, columns: Tensor) -> BlockBias:
    """Return the bias q_i . column_(i - j) of consecutive tokens.

    Args:
        call: Attention call with consecutive tokens.
        queries: Tensor [1|B, 1|H, N, K].
        columns: A column for each offset from 0 on, [1|H, K, M].
    """
    offset = index_offsets(call)

    def compute_block(span: Span) -> Tensor:
        products = span.slice_queries(queries) @ columns[..., : span.keys.stop]
        index = call.evaluate(offset, span).expand(*products.shape[:3], -1)
        return products.gather(-1, index)

    return BlockBias(compute_block)


def position_offsets(call: AttentionCall, axis: int) -> Index:
    """Return p_i - p_j along one axis."""
    queries = call.queries.pos[..., axis].contiguous()  # [1|B, N]
    keys = call.keys.pos[..., axis].contiguous()  # [1|B, M]
    return lambda b, h, i, j: pick(queries, b, i) - pick(keys, b, j)
