"""Turning by exp(t S) = Q rot(t w) Q^T, S skew-symmetric, with a derivative that is exact everywhere.

A score contains Q^T Q = 1 between a query and a key, so the left Q is never applied. For the same reason the gradients to
queries and to keys, each times what was turned, are each other's transposes when summed over tokens: what a change of Q
contributes there is nothing. What remains is a product per head, q^T times its gradient before turning, divided by how much
faster one plane turns than another (the derivative of an eigenvector). That is infinite for planes that turn alike, where
the derivative of the exponential itself is not (Najfeld and Havel 1995): there it is taken as a series in the difference,
so that a matrix of zeros or of low rank is as good as any other.
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

# the angle below which planes turn alike: there rounding is as large as what the series leaves out
NEAR = {torch.float64: 1e-5, torch.float32: 0.02}


def spectral_tables(skew: Tensor, times: Tensor) -> tuple[Tensor, ...]:
    """What `turn_by_exponential` needs of S = skew [H, m, b, b] and t = times [1|B, H, N, m], made once for q and k."""
    frequencies, basis, *moments = _Spectrum.apply(skew, times.detach())  # type: ignore[no-untyped-call]
    # no view: FSDP hooks it
    angles = times.repeat_interleave(frequencies.shape[-1], -1) * frequencies.flatten(1)[:, None]
    return cos_sin(angles.detach()), angles, basis, times, *moments


def rotate_by_spectrum(x: Tensor, *tables: Tensor) -> Tensor:
    """Q^T exp(t S) x for x [B, H, N, K], block by block.

    Differentiable in x, skew and times, provided that all that is made of the result are products of two such results.
    """
    return _Turn.apply(x, *tables)  # type: ignore[no-untyped-call]


class _Turn(torch.autograd.Function):
    """x -> rot(angles) Q^T x, with gradients to x, to the angles, and to moments, which are the sums over tokens of
    t^k g x^T, k = 0, 1, 2, block by block, g being the gradient to Q^T x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, angles: Tensor, *others: Tensor) -> Tensor:
        seen = change_basis(x, others[0])  # [B, H, N, K]
        ctx.save_for_backward(seen, table, *others)
        return multiply_pairs(seen, table)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, table, basis, times, *moments = ctx.saved_tensors
        g = multiply_pairs(gradient, table, -1)
        to_x = change_basis(g, basis.mT) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[2]:
            return to_x, *(None,) * (4 + len(moments))
        to_angles = angle_gradient(x, g, table.shape[:-1]).to(table.dtype)
        return (
            to_x,
            None,
            to_angles,
            None,
            None,
            *(_moment(g, x, times, power, basis) for power in range(len(moments))),
        )


class _Spectrum(torch.autograd.Function):
    """S -> frequencies, basis and, to be learned through, zeros in the stead of what moments are the gradients to.

    Moments past the first tell planes that turn alike. On a CPU they are left out where there are none: to ask a GPU would
    be to wait for it.
    """

    @staticmethod
    def forward(ctx: Any, skew: Tensor, times: Tensor) -> tuple[Tensor, ...]:
        frequencies, basis = spectrum(skew)
        apart, wide = (
            frequency_gaps(frequencies),
            merge_blocks(basis),
        )  # [H, m, 2, b/2, b/2], [H, m / r, r b, r b]
        near = apart.abs() * times.abs().amax((0, 2))[..., None, None, None] <= NEAR[skew.dtype]
        some = torch.compiler.is_compiling() or skew.device.type != "cpu" or bool(near.any())
        ctx.save_for_backward(apart, near, basis)
        ctx.mark_non_differentiable(wide)
        return frequencies, wide, *(torch.zeros_like(wide) for _ in range(3 if some else 1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, frequencies: Tensor, _: Tensor, *moments: Tensor) -> tuple[Tensor, None]:
        apart, near, basis = ctx.saved_tensors
        first, *others = (split_blocks(moment, basis.shape) for moment in moments)
        found = to_planes(first - first.mT) * (-0.5j / apart)
        if others:
            found = torch.where(
                near, to_planes(others[0]) - 0.5j * apart * to_planes(others[1]), found
            )
        own = torch.diag_embed(frequencies)
        inner = from_planes(found - 1j * torch.stack([own, torch.zeros_like(own)], dim=-3))
        return basis @ inner @ basis.mT, None


def _moment(g: Tensor, x: Tensor, times: Tensor, power: int, basis: Tensor) -> Tensor:
    """Sums over samples and tokens of t^power g x^T, in blocks as wide as those of the basis."""
    g, x = g.to(times.dtype), x.to(times.dtype)
    if power:
        x = (x.unflatten(-1, (times.shape[-1], -1)) * times[..., None] ** power).flatten(-2)
    g, x = (one.unflatten(-1, (basis.shape[1], -1)) for one in (g, x))
    return torch.einsum("bhnmi,bhnmj->hmij", g, x)
