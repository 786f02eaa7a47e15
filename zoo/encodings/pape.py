"""Parabolas of the offset that queries choose (PaPE; Ohrstrom et al. 2026, arXiv:2602.01418)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import (
    POINT_AXES,
    AttentionCall,
    Dims,
    Encoding,
    Tokens,
    disable_autocast,
    is_transformed,
    upcast,
)
from zoo.attention.call import Index, index_table
from zoo.attention.coordinates import get_known_range, get_known_sizes
from zoo.attention.tokens import has_values
from zoo.encodings.common.layers import apply_linear
from zoo.encodings.common.panels import Panels, head_panel
from zoo.encodings.common.position_tables import position_offsets
from zoo.options import Between
from zoo.registry import register

# Largest spread of coordinates for which the products of a low-rank bias are exact enough in
# float32: they are squares of positions, which cancel for near tokens.
LARGEST_SPREAD = 128.0


@register
class PaPE(Encoding):
    """scores + sum_m (-a_im (u_im - u_jm)^2 + b_im (u_im - u_jm)) / sqrt(K), u = position(p)

    a = softplus(a(x_i)) and b = b(x_i), for each head and each of the `parabolas` m. With
    `rotation_invariant`, u = scale_h p, one a for all axes, and no b; `scale` is drawn once from
    U(-1, 1) / sqrt(P) and does not learn. Sums over parabolas are quadratic forms of the offset
    with P^2 + P numbers, and the bias has rank P^2 + P + 1; where coordinates are more than 128
    apart, its squares would cancel in float32, and offsets are taken first.

    Args:
        parabolas: Number of parabolas of each head.
        rotation_invariant: Whether the bias depends on the length of an offset only.
    """

    part = "gates"
    shared, shift_invariant, reads_states = False, True, True
    axes = (1, 2, 3)
    point_axes = POINT_AXES

    scale: Tensor

    def __init__(
        self,
        dims: Dims,
        *,
        parabolas: Annotated[int, Between(1)] = 50,
        rotation_invariant: bool = False,
    ) -> None:
        super().__init__(dims)
        self.parabolas, self.rotation_invariant = parabolas, rotation_invariant
        if rotation_invariant:
            scale = (2 * torch.rand(dims.heads) - 1) / math.sqrt(dims.axes)
            self.register_buffer("scale", scale)
            self.a = nn.Linear(dims.dim, dims.heads, bias=False)
            return
        count = dims.heads * parabolas
        self.position = nn.Linear(dims.axes, count, bias=False)
        self.a = nn.Linear(dims.dim, count, bias=False)
        self.b = nn.Linear(dims.dim, count, bias=False)

    def modify(self, call: AttentionCall) -> AttentionCall:
        with disable_autocast(call.q.device):
            curvature, slope = self._measure_forms(call.queries)
            if _measure_spread(call) > LARGEST_SPREAD:
                return call.add_bias(_bias_of_offsets(call, curvature, slope))
            return _add_products(call, curvature, slope)

    def panels(self, call: AttentionCall) -> Panels:
        axes = self.dims.axes
        with disable_autocast(call.q.device):
            curvature = self._measure_forms(call.queries)[0].unflatten(-1, (axes, axes))
        mean = curvature.diagonal(dim1=-2, dim2=-1).mean((0, 2, 3))
        caption = "Mean penalty of a squared step along an axis: large values keep a head local."
        yield head_panel("Curvatures", "score per squared step", mean, caption)

    def _measure_forms(self, queries: Tokens) -> tuple[Tensor, Tensor | None]:
        """Return the quadratic and linear forms of the offset that the queries choose.

        Returns:
            Curvatures sum_m a_im w_m w_m^T [B, H, N, P^2] and slopes sum_m b_im w_m [B, H, N, P],
            where w_m are the rows of `position`; both over sqrt(K). Slopes are None without b.
        """
        # Only queries have forms: they are made after the cache, which need not keep them for keys.
        heads, root = self.dims.heads, math.sqrt(self.dims.head_dim)
        a = F.softplus(apply_linear(self.a, queries.x)).unflatten(-1, (heads, -1)).transpose(1, 2)
        if self.rotation_invariant:
            identity = torch.eye(self.dims.axes, dtype=a.dtype, device=a.device).flatten()
            squares = upcast(self.scale).square()[:, None, None] / root
            return a * squares * identity, None
        waves = upcast(self.position.weight).unflatten(0, (heads, -1))  # [H, M, P]
        products = (waves[..., :, None] * waves[..., None, :]).flatten(-2)  # [H, M, P^2]
        b = apply_linear(self.b, queries.x).unflatten(-1, (heads, -1)).transpose(1, 2)
        return a @ products / root, b @ waves / root


def _measure_spread(call: AttentionCall) -> float:
    """Return a bound of the extent of the keys' coordinates; infinite if none is known."""
    tokens = call.keys
    pos, sizes = tokens.pos, tokens.grid_size
    # A graph is for any coordinates.
    if torch.compiler.is_compiling() or is_transformed(pos):
        return math.inf
    if pos.shape[-1] == 1:
        if (limits := get_known_range(pos)) is not None:
            return limits[1] - limits[0]
        if tokens.consecutive:
            return float(pos.shape[1])
    elif sizes is not None and (grid := get_known_sizes(sizes)) is not None:
        return float(max(grid))
    # Other devices would have to wait.
    if pos.device.type == "cpu" and has_values(pos) and pos.numel():
        return float((pos.amax(1) - pos.amin(1)).amax())
    return math.inf


def _add_products(call: AttentionCall, curvature: Tensor, slope: Tensor | None) -> AttentionCall:
    """Add -d' A d + c.d with d = p_i - p_j as products of terms of the query and of the key."""
    # Positions relative to the middle of the keys, so that equal shifts change nothing and squares
    # are small.
    keys = call.keys.pos
    middle = (keys[:, :1] + keys[:, -1:]) / 2
    rows, columns = (
        (tokens.pos - middle)[:, None] for tokens in (call.queries, call.keys)
    )  # [.., N, P]
    axes = rows.shape[-1]
    forms = curvature.unflatten(-1, (axes, axes))
    bent = (forms * rows[..., None, :]).sum(-1)  # A p_i [B, H, N, P]
    constant, linear = -(rows * bent).sum(-1, keepdim=True), 2 * bent
    if slope is not None:
        constant, linear = constant + (slope * rows).sum(-1, keepdim=True), linear - slope
    squares = (columns[..., :, None] * columns[..., None, :]).flatten(-2)  # [1|B, 1, M, P^2]
    call = call.add_low_rank_bias(constant, constant.new_ones(1, 1, 1, 1))
    left, right = torch.cat([-curvature, linear], -1), torch.cat([squares, columns], -1)
    return call.add_low_rank_bias(left, right)


def _bias_of_offsets(call: AttentionCall, curvature: Tensor, slope: Tensor | None) -> Index:
    """Return -d' A d + c.d with d = p_i - p_j as a function of pairs."""
    axes = call.keys.pos.shape[-1]
    offsets = [position_offsets(call, axis) for axis in range(axes)]

    def bias(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        steps = [offset(b, h, i, j) for offset in offsets]
        total = torch.zeros_like(steps[0])
        for row, row_step in enumerate(steps):
            for column, column_step in enumerate(steps):
                form = index_table(curvature, b, h, i, i * 0 + row * axes + column)
                total = total - form * row_step * column_step
            if slope is not None:
                total = total + index_table(slope, b, h, i, i * 0 + row) * row_step
        return total

    return bias
