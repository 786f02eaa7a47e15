"""Turning heads by many small matrices, block by block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.attention import precise
from zoo.encodings.parts.blocks import small


def turn_blocks(x: Tensor, rotations: Tensor) -> Tensor:
    """Heads x [B, H, N, K] turned by rotations [1|B, H, N, m, b, b], block by block. Channels beyond stay."""
    width = rotations.shape[3] * rotations.shape[-1]
    if width < x.shape[-1]:
        return torch.cat([turn_blocks(x[..., :width], rotations), x[..., width:]], dim=-1)
    if small(rotations):
        return _Turn.apply(x, rotations)  # type: ignore[no-untyped-call]
    blocks, matrices = x.unflatten(-1, rotations.shape[3:5]), rotations.to(x.dtype)
    if len(matrices) == 1:
        return torch.einsum("hnmij,bhnmj->bhnmi", matrices[0], blocks).flatten(-2)
    return torch.einsum("bhnmij,bhnmj->bhnmi", matrices, blocks).flatten(-2)


class _Turn(torch.autograd.Function):
    """Turning by small matrices, whose gradient is summed over samples as soon as it is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rotations: Tensor) -> Tensor:
        columns, matrices = _columns(x, rotations), _elements(rotations)
        ctx.save_for_backward(columns, rotations)
        return _heads(_times(matrices, columns)).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable  # the columns are kept, not the heads that they were made of
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        columns, rotations = ctx.saved_tensors
        rows, matrices = _columns(gradient, rotations), _elements(rotations)
        to_x = _heads(_times(matrices.transpose(1, 2), rows)).to(gradient.dtype)
        return to_x, _outer(rows, columns, len(rotations)) if ctx.needs_input_grad[1] else None


def _columns(x: Tensor, rotations: Tensor) -> Tensor:
    """Heads [B, H, N, K] as [B, b, N, H, m]: elements outermost, then tokens before heads, as projections lie."""
    blocks = precise(x).to(rotations.dtype).unflatten(-1, rotations.shape[3:5])
    return blocks.permute(0, 4, 2, 1, 3).contiguous()


def _heads(columns: Tensor) -> Tensor:
    return columns.permute(0, 2, 3, 4, 1).flatten(-2).transpose(1, 2)


def _elements(rotations: Tensor) -> Tensor:
    """[1|B, H, N, m, b, b] as [1|B, b, b, N, H, m]"""
    return rotations.permute(0, 4, 5, 2, 1, 3)


def _times(matrices: Tensor, columns: Tensor) -> Tensor:
    out = matrices[:, :, 0] * columns[:, :1]  # [B, b, N, H, m]
    for j in range(1, matrices.shape[2]):
        out.addcmul_(matrices[:, :, j], columns[:, j : j + 1])
    return out


def _outer(rows: Tensor, columns: Tensor, batch: int) -> Tensor:
    """Rows times columns of each block, summed over samples unless there are matrices for each: [1|B, H, N, m, b, b]."""
    rows, columns = rows[:, :, None], columns[:, None]
    out = rows[:batch] * columns[:batch]
    for sample in range(batch, len(rows)):
        out[0].addcmul_(rows[sample], columns[sample])
    return out.permute(0, 4, 3, 5, 1, 2)
