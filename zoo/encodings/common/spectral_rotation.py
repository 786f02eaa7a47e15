"""Rotation by exp(t S) = Q rot(t w) Q^T, S skew-symmetric, with an exact derivative everywhere.

A score contains Q^T Q = 1 between a query and a key, so the left Q is never applied. For the same
reason the gradients for queries and for keys, each times what was rotated and summed over tokens,
are transposes of each other: what a change of Q contributes there is zero. What remains is a
product per head, q^T times its gradient before rotation, divided by differences of frequencies
(the derivative of an eigenvector). That is infinite for equal frequencies, where the derivative
of the exponential is finite (Najfeld and Havel 1995): there it is a series in the difference, so
that a matrix of zeros or of low rank is as good as any other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.encodings.common.rotation import angle_gradient, cos_sin, multiply_pairs
from zoo.encodings.common.skew import (
    change_basis,
    frequency_gaps,
    from_planes,
    merge_blocks,
    spectrum,
    split_blocks,
    to_planes,
)

# angle below which frequencies count as equal: there rounding is as large as the series' error
NEAR = {torch.float64: 1e-5, torch.float32: 0.02}


def spectral_tables(skew: Tensor, times: Tensor) -> tuple[Tensor, ...]:
    """Return the tables of `rotate_by_spectrum`, computed once for queries and keys.

    Args:
        skew: S [H, m, b, b].
        times: t [1|B, H, N, m].
    """
    frequencies, basis, *moments = _Spectrum.apply(skew, times.detach())  # type: ignore[no-untyped-call]
    # repeated, because FSDP hooks the gradients of views
    angles = times.repeat_interleave(frequencies.shape[-1], -1) * frequencies.flatten(1)[:, None]
    return cos_sin(angles.detach()), angles, basis, times, *moments


def rotate_by_spectrum(x: Tensor, *tables: Tensor) -> Tensor:
    """Return Q^T exp(t S) x for x [B, H, N, K], block by block.

    Differentiable in x, skew and times, provided that results are only used in products of two.
    """
    return _RotateBySpectrum.apply(x, *tables)  # type: ignore[no-untyped-call]


class _RotateBySpectrum(torch.autograd.Function):
    """x -> rot(angles) Q^T x, with gradients for x, for the angles, and for moments.

    The gradient for moment k = 0, 1, 2 is the sum over tokens of t^k g x^T, block by block, where g
    is the gradient for Q^T x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, angles: Tensor, *others: Tensor) -> Tensor:
        coefficients = change_basis(x, others[0])  # [B, H, N, K]
        ctx.save_for_backward(coefficients, table, *others)
        return multiply_pairs(coefficients, table)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, table, basis, times, *moments = ctx.saved_tensors
        g = multiply_pairs(gradient, table, -1)
        grad_x = change_basis(g, basis.mT) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[2]:
            return grad_x, *(None,) * (4 + len(moments))
        grad_angles = angle_gradient(x, g, table.shape[:-1]).to(table.dtype)
        grad_moments = [_moment(g, x, times, power, basis) for power in range(len(moments))]
        return grad_x, None, grad_angles, None, None, *grad_moments


class _Spectrum(torch.autograd.Function):
    """S -> frequencies, basis, and zeros whose gradients are the moments.

    Moments past the first serve equal frequencies. On a CPU they are left out if there are none; a
    GPU would have to be waited for.
    """

    @staticmethod
    def forward(ctx: Any, skew: Tensor, times: Tensor) -> tuple[Tensor, ...]:
        frequencies, basis = spectrum(skew)
        gaps = frequency_gaps(frequencies)  # [H, m, 2, b/2, b/2]
        merged = merge_blocks(basis)  # [H, m / r, r b, r b]
        longest = times.abs().amax((0, 2)) if times.numel() else times.new_zeros(times.shape[1::2])
        near = gaps.abs() * longest[..., None, None, None] <= NEAR[skew.dtype]
        on_cpu = skew.device.type == "cpu" and not torch.compiler.is_compiling()
        count = 3 if not on_cpu or bool(near.any()) else 1
        ctx.save_for_backward(gaps, near, basis)
        ctx.mark_non_differentiable(merged)
        return frequencies, merged, *(torch.zeros_like(merged) for _ in range(count))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, frequencies: Tensor, _: Tensor, *moments: Tensor) -> tuple[Tensor, None]:
        gaps, near, basis = ctx.saved_tensors
        first, *others = (split_blocks(moment, basis.shape) for moment in moments)
        parts = to_planes(first - first.mT) * (-0.5j / gaps)
        if others:
            series = to_planes(others[0]) - 0.5j * gaps * to_planes(others[1])
            parts = torch.where(near, series, parts)
        own = torch.diag_embed(frequencies)
        inner = from_planes(parts - 1j * torch.stack([own, torch.zeros_like(own)], dim=-3))
        return basis @ inner @ basis.mT, None


def _moment(g: Tensor, x: Tensor, times: Tensor, power: int, basis: Tensor) -> Tensor:
    """Return sums over samples and tokens of t^power g x^T, in blocks as wide as the basis."""
    g, x = g.to(times.dtype), x.to(times.dtype)
    if power:
        x = (x.unflatten(-1, (times.shape[-1], -1)) * times[..., None] ** power).flatten(-2)
    g, x = (one.unflatten(-1, (basis.shape[1], -1)) for one in (g, x))
    return torch.einsum("bhnmi,bhnmj->hmij", g, x)
