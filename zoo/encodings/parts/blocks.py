"""Many small square matrices: their products, and turning heads by them block by block.

A CPU multiplies small matrices fastest element by element, for all of them at once, with the elements outermost in memory;
larger ones, and those on a GPU, as batches of matrix products. Results are the same, and so are the shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.attention import precise

SMALL = 8  # rows up to which elements are faster: at 8 a third of the time of batches, at 16 two and a half times
CACHED = 2**17  # numbers in what is multiplied at once


def small(matrices: Tensor) -> bool:
    """Whether matrices [..., b, b] are multiplied element by element."""
    return matrices.shape[-1] <= SMALL and matrices.device.type == "cpu" and not torch.compiler.is_compiling()


def parts(matrices: Tensor) -> tuple[Tensor, ...]:
    """Matrices [..., b, b] as several [n, b, b] that are multiplied fastest: small ones as few as a cache holds."""
    if not small(matrices):
        return (matrices.flatten(0, -3),)
    elements = matrices.movedim((-2, -1), (0, 1)).flatten(2).contiguous()  # [b, b, all]
    return tuple(part.movedim(2, 0) for part in elements.split(max(CACHED // len(elements) ** 2, 1), dim=2))


def joined(parts: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """What was made of the `parts` of matrices of a shape [..., b, b], in that shape."""
    if len(parts) == 1:
        return parts[0].unflatten(0, shape[:-2])
    elements = torch.cat([part.movedim(0, 2) for part in parts], dim=2)
    return elements.unflatten(2, shape[:-2]).movedim((0, 1), (-2, -1))


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b for [..., b, b]."""
    return _added(a[..., :, :1] * b[..., :1, :], a, b, 1) if small(a) else a @ b


def plus_product(onto: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """onto + a @ b for [..., b, b]; what was there may be overwritten."""
    return _added(onto, a, b, 0) if small(a) else onto + a @ b


def _added(onto: Tensor, a: Tensor, b: Tensor, first: int) -> Tensor:
    for k in range(first, a.shape[-1]):
        onto.addcmul_(a[..., :, k : k + 1], b[..., k : k + 1, :])
    return onto


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
