"""Rotations of queries and keys: one kernel turns pairs of channels, whatever the angles are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.attention import precise


def circle(angles: Tensor) -> Tensor:
    """(cos, sin) of angles [..., N, pairs], the table that `turn` takes: [..., N, pairs, 2]."""
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def turn(x: Tensor, table: Tensor) -> Tensor:
    """Pairs (2i, 2i + 1) of x [B, H, N, K] turned: (a, b) -> (a cos - b sin, a sin + b cos). Channels beyond stay."""
    width = 2 * table.shape[-2]
    if width < x.shape[-1]:
        return torch.cat([turn(x[..., :width], table), x[..., width:]], dim=-1)
    if not torch.is_grad_enabled():
        return multiply(x, table)
    return _Turn.apply(x, table)  # type: ignore[no-untyped-call]


class _Turn(torch.autograd.Function):
    """Turning by a table, whose gradient is summed over samples as soon as it is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(x, table)
        return multiply(x, table)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x, table = ctx.saved_tensors
        to_x = multiply(gradient, table, -1)
        if not ctx.needs_input_grad[1]:
            return to_x, None
        if torch.compiler.is_compiling():
            (a, b), (c, d) = _pairs(x), _pairs(gradient)
            return to_x, torch.stack([a * c + b * d, a * d - b * c], dim=-1).sum_to_size(table.shape)
        products = (_complex(x).conj() * _complex(gradient)).sum_to_size(table.shape[:-1])
        return to_x, torch.view_as_real(products).to(table.dtype)


def multiply(x: Tensor, table: Tensor, sign: int = 1) -> Tensor:
    """Pairs of x [B, H, N, K] as complex numbers, times those of the table, or for sign -1 their conjugates.

    A CPU turns interleaved pairs fastest as complex numbers; a compiler fuses real arithmetic and does not know them.
    """
    if torch.compiler.is_compiling():
        (a, b), (cos, sin) = _pairs(x), (table[..., 0], table[..., 1] * sign)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)
    z, turns = _complex(x), torch.view_as_complex(table)
    batch, heads, tokens, pairs = z.shape
    dtype = torch.promote_types(z.dtype, turns.dtype)
    out = z.new_empty(batch, tokens, heads, pairs, dtype=dtype).transpose(
        1, 2
    )  # tokens before heads, as projections lie
    torch.mul(z, turns if sign > 0 else turns.conj(), out=out)
    return torch.view_as_real(out).flatten(-2).to(x.dtype)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = precise(x).unflatten(-1, (-1, 2)).unbind(-1)
    return first, second


def _complex(x: Tensor) -> Tensor:
    pairs = precise(x).unflatten(-1, (-1, 2))
    aligned = pairs.stride(-1) == 1 and pairs.storage_offset() % 2 == 0 and not any(s % 2 for s in pairs.stride()[:-1])
    return torch.view_as_complex(pairs if aligned else pairs.contiguous())
