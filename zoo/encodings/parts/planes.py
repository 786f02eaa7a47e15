"""Turning by exp(t S) = Q rot(t w) Q^T, S skew-symmetric, with a derivative that is exact everywhere.

A score contains Q^T Q = 1 between a query and a key, so the left Q is never applied. The derivative of Q itself is
infinite where eigenvalues coincide, that of the exponential is not: it is taken directly (Najfeld and Havel 1995), token
by token in the planes, so that a matrix of zeros or of low rank is as good as any other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.encodings.parts.bases import rebased
from zoo.encodings.parts.rotation import circle, multiply
from zoo.encodings.parts.spectrum import spectrum, weights


def prepare(skew: Tensor, times: Tensor) -> tuple[Tensor, ...]:
    """What `turn_by_exponential` needs of S = skew [H, m, b, b] and t = times [1|B, H, N, m], made once for q and k."""
    with torch.no_grad():
        frequencies, basis = spectrum(skew)
        table = circle((times[..., None] * frequencies[:, None]).flatten(-2))  # [1|B, H, N, K/2, 2]
    if not (torch.is_grad_enabled() and (skew.requires_grad or times.requires_grad)):
        return skew, times, frequencies, basis, table
    return skew, times, frequencies, basis, table, *weights(times.detach().transpose(1, 2), frequencies)


def turn_by_exponential(
    x: Tensor, skew: Tensor, times: Tensor, frequencies: Tensor, basis: Tensor, table: Tensor, *weights: Tensor
) -> Tensor:
    """Q^T exp(t S) x for x [B, H, N, K], block by block.

    Differentiable in x, skew and times, provided that all that is made of the result are products of two such results.
    """
    return _Turn.apply(x, skew, times, frequencies, basis, table, *weights)  # type: ignore[no-untyped-call]


class _Turn(torch.autograd.Function):
    """x -> Q^T exp(t S) x, with gradients to x, S and t."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        skew: Tensor,
        times: Tensor,
        frequencies: Tensor,
        basis: Tensor,
        table: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        turned = multiply(rebased(x, _diagonal(basis)), table)  # [B, H, N, K]
        ctx.save_for_backward(turned, times, frequencies, basis, table, *weights)
        return turned

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        turned, times, frequencies, basis, table, *weights = ctx.saved_tensors
        nothing = (None,) * (3 + len(weights))
        to_x = rebased(multiply(gradient, table, -1), _diagonal(basis).mT) if ctx.needs_input_grad[0] else None
        if not weights:
            return to_x, None, None, *nothing
        blocks = (basis.shape[1], basis.shape[2])
        g, y = (one.to(basis.dtype).unflatten(-1, blocks) for one in (gradient, turned))
        if times.shape[0] == 1:  # samples are summed at once; tokens before heads is how they lie in memory
            products = torch.einsum("bhnmi,bhnmj->nhmij", g, y)[None]
        else:
            products = torch.einsum("bhnmi,bhnmj->bnhmij", g, y)
        # conj(g_r) y_s and g_r y_s of planes r and s as complex numbers, [1|B, N, H, m, b/2, b/2]
        first, second = torch.view_as_complex(products.unflatten(-1, (-1, 2))).unflatten(-2, (-1, 2)).unbind(-2)
        straight, crossed = first - 1j * second, first + 1j * second
        to_times = -(straight.imag.diagonal(dim1=-2, dim2=-1) * frequencies).sum(-1).transpose(1, 2)
        inner = _real((straight * weights[0]).sum((0, 1)), (crossed.conj() * weights[1]).sum((0, 1)))
        return to_x, basis @ inner @ basis.mT, to_times, *nothing


def _real(a: Tensor, c: Tensor) -> Tensor:
    """The gradient to a real matrix [.., b, b], from those to its parts a, c [.., b/2, b/2] with z -> a z + c conj(z)."""
    plus, minus = a + c, a - c
    top, bottom = torch.stack([plus.real, minus.imag], dim=-1), torch.stack([-plus.imag, minus.real], dim=-1)
    return torch.stack([top, bottom], dim=-3).flatten(-2).flatten(-3, -2) / 2


def _diagonal(blocks: Tensor) -> Tensor:
    """Blocks [H, m, b, b] on the diagonal of [H, K, K]."""
    one = torch.eye(blocks.shape[1], device=blocks.device, dtype=blocks.dtype)
    return torch.einsum("hmij,mn->hminj", blocks, one).flatten(3).flatten(1, 2)
