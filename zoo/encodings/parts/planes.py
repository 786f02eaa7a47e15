"""Turning by exp(t S) = Q rot(t w) Q^T, S skew-symmetric, with a derivative that is exact everywhere.

A score contains Q^T Q = 1 between a query and a key, so the left Q is never applied. For the same reason the gradients to
queries and to keys, each times what was turned, are each other's transposes when summed over tokens: what a change of Q
contributes there is nothing. What remains is a product per head, q^T times its gradient before turning, divided by how much
faster one plane turns than another (the derivative of an eigenvector). That is infinite for planes that turn alike, where
the derivative of the exponential itself is not (Najfeld and Havel 1995): there it is taken as a series in the difference,
so that a matrix of zeros or of low rank is as good as any other.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.parts.bases import rebased
from zoo.encodings.parts.rotation import circle, multiply, torques
from zoo.encodings.parts.spectrum import gaps, matrix, planes, spectrum

WIDTH = 16  # channels of a product: of 8 the overhead is larger, of 64 most are products with zeros
NEAR = {torch.float64: 1e-5, torch.float32: 0.02}  # angles between planes that turn alike: rounding is as large as the series' rest


def prepare(skew: Tensor, times: Tensor) -> tuple[Tensor, ...]:
    """What `turn_by_exponential` needs of S = skew [H, m, b, b] and t = times [1|B, H, N, m], made once for q and k."""
    with torch.no_grad():
        frequencies, basis = spectrum(skew)
        table = circle((times[..., None] * frequencies[:, None]).flatten(-2))  # [1|B, H, N, K/2, 2]
        return skew, times, frequencies, basis, table, _diagonal(basis)


def turn_by_exponential(x: Tensor, skew: Tensor, times: Tensor, *tables: Tensor) -> Tensor:
    """Q^T exp(t S) x for x [B, H, N, K], block by block.

    Differentiable in x, skew and times, provided that all that is made of the result are products of two such results.
    """
    return _Turn.apply(x, skew, times, *tables)  # type: ignore[no-untyped-call]


class _Turn(torch.autograd.Function):
    """x -> Q^T exp(t S) x, with gradients to x, S and t."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, skew: Tensor, times: Tensor, *tables: Tensor) -> Tensor:
        frequencies, basis, table, wide = tables
        turned = multiply(rebased(x, wide), table)  # [B, H, N, K]
        ctx.save_for_backward(turned, times, frequencies, basis, table, wide)
        return turned

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        turned, times, frequencies, basis, table, wide = ctx.saved_tensors
        back = multiply(gradient, table, -1)
        to_x = rebased(back, wide.mT) if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[1:3]):
            return to_x, *(None,) * 6
        torque = torques(turned, gradient, table.shape[:-1]).unflatten(-1, frequencies.shape[1:])  # [1|B, H, N, m, b/2]
        inner = _inner(back, multiply(turned, table, -1), torque, times, frequencies)
        to_times = (torque * frequencies[:, None]).sum(-1).sum_to_size(times.shape)
        return to_x, basis @ inner @ basis.mT, to_times, *(None,) * 4


def _inner(g: Tensor, x: Tensor, torque: Tensor, times: Tensor, frequencies: Tensor) -> Tensor:
    """The gradient to S in its basis, [H, m, b, b], from x and the gradient to it, [B, H, N, K], both in the basis."""
    moment = _moment(g, x, None, frequencies)
    apart = gaps(frequencies)
    found = planes(moment - moment.mT) * (-0.5j / apart)
    reach = times.abs().amax((0, 2))[..., None, None, None]  # [H, m, 1, 1, 1]
    near = apart.abs() * reach <= NEAR.get(g.dtype, 0.3)
    if torch.compiler.is_compiling() or g.device.type != "cpu" or near.any():  # asking a GPU would wait for it
        first, second = (planes(_moment(g, x, times**power, frequencies)) for power in (1, 2))
        found = torch.where(near, first - 0.5j * apart * second, found)
    own = torch.diag_embed((times[..., None] * torque).sum((0, 2)))  # how each plane's own frequency changes
    return matrix(found - 1j * torch.stack([own, torch.zeros_like(own)], dim=-3))


def _moment(g: Tensor, x: Tensor, weights: Tensor | None, frequencies: Tensor) -> Tensor:
    """g x^T of heads [B, H, N, K], block by block, times weights [1|B, H, N, m], summed over samples and tokens: [H, m, b, b]."""
    blocks = frequencies.shape[1]
    g, x = g.to(frequencies.dtype), x.to(frequencies.dtype)
    if weights is not None:
        x = (x.unflatten(-1, (blocks, -1)) * weights[..., None]).flatten(-2)
    count = _together(blocks, 2 * frequencies.shape[-1])
    g, x = (one.unflatten(-1, (blocks // count, -1)) for one in (g, x))
    wide = torch.einsum("bhnmi,bhnmj->hmij", g, x)  # [H, m / r, r b, r b]
    split = wide.unflatten(-1, (count, -1)).unflatten(-3, (count, -1))  # [H, m / r, r, b, r, b]
    return split.diagonal(dim1=2, dim2=4).movedim(-1, 2).flatten(1, 2)


def _diagonal(blocks: Tensor) -> Tensor:
    """Blocks [H, m, b, b] as fewer and wider ones, [H, m / r, r b, r b], with r of them on the diagonal of each."""
    count = _together(*blocks.shape[1:3])
    one = torch.eye(count, device=blocks.device, dtype=blocks.dtype)
    return torch.einsum("hmrij,rs->hmrisj", blocks.unflatten(1, (-1, count)), one).flatten(4).flatten(2, 3)


def _together(blocks: int, size: int) -> int:
    """How many of the blocks make one of a width that is multiplied fast."""
    return gcd(blocks, max(WIDTH // size, 1))
