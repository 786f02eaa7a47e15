"""Tables that are read at positions: learned rows, and biases of the offsets between tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention import AttentionCall, BlockBias, Span, Tokens, upcast
from zoo.attention.call import Index
from zoo.attention.coordinates import (
    fill_numbers,
    get_known_range,
    get_known_sizes,
    grid,
    grid_shape,
)
from zoo.attention.tokens import pick
from zoo.errors import OptionError

NORMS_CAPTION = (
    "The norm of the learned vector of each position: positions that training rarely visits keep"
    " their initial norm."
)


def bicubic_neighbours(pos: Tensor, sizes: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the 4^P neighbours of coordinates on a grid for bicubic interpolation.

    Rows at the edges repeat.

    Args:
        pos: Coordinates [.., P], in cells.
        sizes: Size of the grid along each axis.

    Yields:
        The weight [.., 1] and the row number [..] of a neighbour.
    """
    base = pos.floor()
    weights = _cubic_weights(pos - base)  # four of [.., P]
    for offsets in product(range(4), repeat=len(sizes)):
        weight = torch.ones_like(pos[..., 0])
        row = torch.zeros_like(pos[..., 0], dtype=torch.long)
        # The weight is a product over axes; the row number is row-major.
        for axis, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            weight = weight * weights[offset][..., axis]
            row = row * size + (base[..., axis].long() + offset - 1).clamp(0, size - 1)
        yield weight[..., None], row


def _cubic_weights(t: Tensor, a: float = -0.75) -> tuple[Tensor, ...]:
    """Return weights of the points -1, 0, 1, 2 at t in [0, 1): cubic convolution (Keys 1981)."""

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def read_rows(
    table: Tensor, tokens: Tokens, sizes: tuple[int, ...], stretch: float = 1.0
) -> Tensor:
    """Read the rows [1|B, N, D] of a table at the positions of tokens.

    Args:
        table: Rows [tokens, D] of a grid, row-major.
        tokens: Tokens with their positions.
        sizes: Size of the grid. A grid of several axes is resampled to the grid of the tokens.
        stretch: On one axis, factor by which the table is resampled to a greater length.
    """
    pos = tokens.pos
    if tokens.grid_size is not None and len(sizes) > 1:
        pos = _resample(pos, fill_numbers(sizes, pos.new_empty(0)) / tokens.grid_size)
    if len(sizes) == 1 and stretch != 1:
        pos = _resample(pos, 1 / stretch)
    return sum(weight * table[row] for weight, row in bicubic_neighbours(pos, sizes))  # type: ignore[return-value]


def resize_antialiased(
    table: Tensor, tokens: Tokens, sizes: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """Resize a table to the grid of tokens, bicubically and with antialiasing.

    Args:
        table: Rows [tokens, D] of a grid of two axes, row-major.
        tokens: Tokens. Without a grid size, their coordinates lie on the grid of the table.
        sizes: Size of the table's grid.

    Returns:
        The rows of the new grid, and its size.

    Raises:
        OptionError: The samples have grids of different sizes.
    """
    grid_size = tokens.grid_size
    # Values cannot be read on the meta device, and the shape of what is read is the same.
    if grid_size is None or grid_size.is_meta:
        return table, sizes
    target = get_known_sizes(grid_size)
    if target is None:
        if not (grid_size == grid_size[:1, :1]).all():
            message = "antialias needs grids of one size in a batch"
            raise OptionError("antialias", f"learned: {message}; leave it out")
        target = tuple(int(size) for size in grid_size[0, 0])
    if target == sizes:
        return table, sizes
    image = table.reshape(1, *sizes, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(upcast(image), size=target, mode="bicubic", antialias=True)
    return resized.permute(0, 2, 3, 1).reshape(-1, table.shape[1]).to(table.dtype), target


def resize_table(
    table: Tensor, source: tuple[int, ...], target: tuple[int, ...], initial: Tensor
) -> Tensor | None:
    """Adapt a learned table to a grid of another size.

    Every frame of a clip gets the rows of an image; an image gets the mean over frames. A longer
    text keeps the `initial` rows past the end of the learned ones.

    Args:
        table: Learned rows [tokens, D].
        source: Size of the grid of the table.
        target: Size of the new grid.
        initial: Rows of the new grid before training.

    Returns:
        The adapted rows, or None between text and a grid.
    """
    if source == target:
        return table

    # Between texts: cut, or continue with the initial rows.
    if len(source) == len(target) == 1:
        if table.shape[1] != initial.shape[1]:
            return None
        return torch.cat([table, initial[source[0] :]])[: target[0]]
    if 1 in (len(source), len(target)):
        return None

    # Between grids: average frames away, resample rows and columns, then repeat them for frames.
    if len(source) > len(target):
        source, table = source[1:], table.unflatten(0, source).mean(0).flatten(0, 1)
    sizes = target[-len(source) :]
    tokens = Tokens.at(table.new_empty(1, prod(sizes), 0), grid(sizes, table))
    tokens = tokens.replace(grid_size=grid_shape(sizes, tokens.pos))
    resized = read_rows(table, tokens, source)[0]
    return resized.repeat(target[0], 1) if len(target) > len(source) else resized


def _resample(pos: Tensor, ratio: Tensor | float) -> Tensor:
    """Map positions to a grid with `ratio` times as many cells, aligning centres of cells."""
    # Position i is the centre of cell [i, i + 1) shifted by a half.
    return (pos + 0.5) * ratio - 0.5


def check_range(pos: Tensor, length: int, has_position: Tensor | None = None) -> None:
    """Check that positions on one axis are in a table.

    Args:
        pos: Coordinates [.., 1].
        length: Number of positions that the table reaches to.
        has_position: Which tokens have a position; None: all.

    Raises:
        OptionError: A position is outside the table.
    """
    # Values cannot be read on the meta device or under a compiler.
    if pos.is_meta or torch.compiler.is_compiling():
        return
    limits = get_known_range(pos)
    if limits is not None and limits[0] >= -0.5 and limits[1] <= length - 0.5:
        return
    rows = pos[..., 0]
    if has_position is not None:
        rows = torch.where(has_position, rows, 0)
    # A position may move within its cell, half a step to either side.
    if rows.numel() and not rows.min() >= -0.5:
        lowest = rows.min().round()
        raise OptionError("pos", f"position {lowest:g} is before the table, whose first is 0")
    if rows.numel() and rows.max() > length - 0.5:
        highest = max(int(rows.max().round()), length)
        message = f"position {highest} is past the table of {length} positions"
        hint = "train at a larger length, or use an encoding that extrapolates"
        raise OptionError("length", message, remedy=hint)


def check_buckets(num_buckets: int, max_distance: int, keys_ahead: bool) -> None:
    """Check that some distances are left to share a bucket.

    Raises:
        OptionError: `max_distance` is among the distances that have a bucket each.
    """
    exact = num_buckets // (4 if keys_ahead else 2)
    if max_distance <= exact:
        reason = f"must be more than {exact}, the distances that have a bucket each"
        raise OptionError("max_distance", f"max_distance {max_distance} {reason}")


def bucket_table(
    num_buckets: int, max_distance: int, keys_ahead: bool, device: torch.device
) -> tuple[int, Tensor]:
    """Return the first offset with a bucket, and the bucket of each offset up to max_distance."""
    check_buckets(num_buckets, max_distance, keys_ahead)
    lowest = -max_distance if keys_ahead else 0
    offsets = torch.arange(lowest, max_distance + 1, device=device)
    return lowest, assign_buckets(offsets, num_buckets, max_distance, keys_ahead)


def assign_buckets(offset: Tensor, num_buckets: int, max_distance: int, keys_ahead: bool) -> Tensor:
    """Return the bucket of each integer offset p_i - p_j."""
    # Logarithms in float32, as in the published code: in float64 some edges differ by one bucket.
    half = num_buckets // 2 if keys_ahead else num_buckets
    distance = offset.abs() if keys_ahead else offset.clamp(min=0)
    exact = half // 2
    logs = (distance.clamp(min=exact).float() / exact).log() / math.log(max_distance / exact)
    shared = (exact + (logs * (half - exact)).long()).clamp(max=half - 1)
    buckets = torch.where(distance < exact, distance.long(), shared)
    return buckets + half * (offset < 0) if keys_ahead else buckets


def index_offsets(call: AttentionCall) -> Index:
    """Return the offsets of consecutive tokens; 0 for keys ahead, which a causal mask hides."""
    return lambda b, h, i, j: (call.key_index(i) - j).clamp(min=0)


def bias_from_offsets(call: AttentionCall, values: Tensor, index: Index) -> BlockBias:
    """Return a bias of consecutive tokens that has one value for each offset.

    Args:
        call: Attention call with consecutive tokens and without `query_index`.
        values: Values [H, M] of the offsets 0 to M - 1. Keys ahead get one of them.
        index: The same values for single pairs.
    """

    def compute_block(span: Span) -> Tensor:
        rows, keys = span.size
        if not keys:
            return values.new_zeros(1, len(values), rows, keys)
        # Row r reads u[(j - r) mod L], with u = values[last - x] and L = rows + keys: repeated rows
        # of L numbers, read as rows of L - 1, are shifted by one each.
        length = rows + keys
        largest = span.first_query + call.k.shape[2] - call.q.shape[2]
        columns = torch.arange(length, device=values.device)
        offsets = largest - torch.where(columns < keys, columns, columns - length)
        u = values.index_select(1, offsets.clamp(0, values.shape[1] - 1))
        shifted = u.repeat(1, rows)[:, : rows * (length - 1)]
        return shifted.view(1, -1, rows, length - 1)[..., :keys]

    return BlockBias(compute_block, index)


def has_bias_of_offsets(call: AttentionCall) -> bool:
    """Return whether `bias_from_offsets` can compute a bias of a call."""
    # A compiler would make a graph for each number of tokens.
    return call.is_consecutive and call.query_index is None and not torch.compiler.is_compiling()


def offset_products(call: AttentionCall, queries: Tensor, columns: Tensor) -> BlockBias:
    """Return the bias q_i . column_(i - j) of consecutive tokens.

    Args:
        call: Attention call with consecutive tokens.
        queries: Queries [1|B, 1|H, N, K].
        columns: A column for each offset 0 to M - 1, [1|H, K, M].
    """
    # All products of a query with offsets cost as much as its scores; a gather then aligns them.
    offset = index_offsets(call)

    def compute_block(span: Span) -> Tensor:
        products = span.slice_queries(queries) @ columns[..., : span.end_key]
        index = call.evaluate(offset, span).expand(*products.shape[:3], -1)
        return products.gather(-1, index)

    return BlockBias(compute_block)


def straight_distance(call: AttentionCall) -> Index:
    """Return the Euclidean distance of two tokens as a function of pairs, on any number of axes."""
    if call.keys.pos.shape[-1] == 1:
        return lambda b, h, i, j: call.distance(b, i, j)
    offsets = [position_offsets(call, axis) for axis in range(call.keys.pos.shape[-1])]
    return lambda b, h, i, j: sum(offset(b, h, i, j).square() for offset in offsets).sqrt()  # type: ignore[union-attr]


def position_offsets(call: AttentionCall, axis: int) -> Index:
    """Return the offsets p_i - p_j along one axis as a function of pairs."""
    queries = call.queries.pos[..., axis].contiguous()  # [1|B, N]
    keys = call.keys.pos[..., axis].contiguous()  # [1|B, M]
    return lambda b, h, i, j: pick(queries, b, i) - pick(keys, b, j)


def extend_slopes(
    global_slope: float, factors: Sequence[float]
) -> dict[str, Mapping[str, float | str]]:
    """Return the rules by which biases that fall with distance are adapted to larger grids.

    `slope` divides all slopes by the factor of the grid, as LookHere does. Grids that grow more
    along one axis than along another have no such factor.

    Args:
        global_slope: The factor of all slopes in training.
        factors: Size relative to that of training, along each axis.

    Returns:
        {rule: options}; empty for a text.
    """
    if len(factors) == 1:
        return {}
    linear: dict[str, Mapping[str, float | str]] = {"linear": {"coordinates": "interpolated"}}
    if len({*factors}) > 1:
        return linear
    return {**linear, "slope": {"global_slope": global_slope / max(1.0, factors[0])}}
