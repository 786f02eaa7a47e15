"""Rows of a table, read between two entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention.tokens import is_transformed


def interpolate_entries(table: Tensor, positions: Tensor) -> Tensor:
    """Interpolate linearly between the entries of a table; past the last entry, take the last.

    On a CPU, leading positions that lie past the last entry in all rows are not looked up one by
    one: they are as many as far keys, and looking up is most of the cost.

    Args:
        table: [.., N, entries].
        positions: Real positions from 0 on, [.., N, M]. NaN gives NaN.

    Returns:
        Interpolated entries [.., N, M].
    """
    is_plain = torch.compiler.is_compiling() or is_transformed(table, positions)
    if is_plain or table.device.type != "cpu":
        return _interpolate(table, positions)
    return _InterpolateEntries.apply(table, positions)  # type: ignore[no-untyped-call]


def _interpolate(table: Tensor, positions: Tensor) -> Tensor:
    index, base, slope = _look_up(table, positions)
    return torch.addcmul(base, slope, positions - index)


def _look_up(table: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the entry before each position, its value, and the slope that follows it."""
    final = table.shape[-1] - 1
    # NaN is no index. A CPU makes 32-bit integers of floats several times as fast as 64-bit ones.
    whole = positions.detach().clamp(0, final).nan_to_num(0.0).int()
    index = whole.long()
    slopes = F.pad(table.diff(dim=-1), (0, 1))  # none after the last
    return whole, table.gather(-1, index), slopes.gather(-1, index)


class _InterpolateEntries(torch.autograd.Function):
    """Linear interpolation that looks up only what lies before the last entry in some row."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, positions: Tensor) -> Tensor:
        ctx.first = past_count = _count_past(positions, table.shape[-1] - 1)
        whole, base, slope = _look_up(table, positions[..., past_count:])
        fraction = positions[..., past_count:] - whole
        ctx.save_for_backward(table, positions, whole, slope, fraction)
        past = table[..., -1:].expand(*base.shape[:-1], past_count)
        return torch.cat([past, base.addcmul_(slope, fraction)], dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # unpacked once: a checkpoint gives them a single time
        table, positions, whole, slope, fraction = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives
            inputs = [tensor for tensor in (table, positions) if tensor.requires_grad]
            values = _interpolate(table, positions)
            gradients = iter(torch.autograd.grad(values, inputs, gradient, create_graph=True))
            return tuple(next(gradients) if needed else None for needed in ctx.needs_input_grad)
        past_count = ctx.first
        index, near = whole.long(), gradient[..., past_count:]
        to_table = torch.zeros_like(table).scatter_add_(-1, index, near)
        to_table[..., -1] += gradient[..., :past_count].sum(-1)
        to_slopes = torch.zeros_like(table).scatter_add_(-1, index, near * fraction)[..., :-1]
        to_table[..., :-1] -= to_slopes
        to_table[..., 1:] += to_slopes
        return to_table, F.pad(near * slope, (past_count, 0))


def _count_past(positions: Tensor, final: int) -> int:
    """Count the leading keys [M] whose positions are at or past the last entry in all rows."""
    if not positions.numel():
        return 0
    is_past = positions.flatten(0, -2).amin(0) >= final  # NaN is not past it
    return int(is_past.int().cumprod(0).sum())
