"""The exponential of many small skew-symmetric matrices: a Taylor series of fixed degree, scaled and squared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.encodings.parts.blocks import joined, parts, plus_product, product, small
from zoo.encodings.parts.series import phi, series

SQUARINGS = 16  # where the count cannot be read off the norms: a compiler, a GPU that must not wait for its host


def exponential(skew: Tensor) -> Tensor:
    """exp(A) for skew-symmetric A [..., b, b], to the precision of its dtype. Its gradient is skew-symmetric too."""
    return _Exponential.apply(skew)  # type: ignore[no-untyped-call]


class _Exponential(torch.autograd.Function):
    """A -> exp(A). Roots of the result are kept where they are few, or else made again going backward.

    d exp(A) = exp(A) phi(-ad A) dA, phi(z) = (exp(z) - 1) / z, ad A dA = A dA - dA A (Najfeld and Havel 1995), and
    2 phi(2 z) = (1 + exp(z)) phi(z), exp(ad A) W = exp(A) W exp(A)^T: the derivative is squared as the exponential is.
    """

    @staticmethod
    def forward(ctx: Any, skew: Tensor) -> Tensor:
        each = [_roots(part) for part in parts(skew)]
        kept = small(skew)
        ctx.counts = [len(roots) if kept else 0 for roots in each]
        ctx.save_for_backward(skew, *(root for roots in each for root, _ in roots if kept))
        return joined([roots[-1][0] for roots in each], skew.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        skew, *roots = ctx.saved_tensors
        found = []
        for part, towards, count in zip(parts(skew), parts(gradient), ctx.counts, strict=True):
            kept: list[tuple[Tensor, Tensor | None]] = [(root, None) for root in roots[:count]]
            found.append(_derivative(part, kept or _roots(part), towards))
            del roots[:count]
        return joined(found, skew.shape)


def _derivative(skew: Tensor, roots: list[tuple[Tensor, Tensor | None]], gradient: Tensor) -> Tensor:
    """The gradient to A, skew-symmetric, of that to exp(A)."""
    scaled, needed, _ = _scaled(skew)
    *roots, (result, _) = roots
    turned = product(result.mT, gradient)
    found = phi(scaled, turned - turned.mT)
    for root, counts in roots:
        further = plus_product(found, product(root, found), root.mT)
        found = further if counts is None else torch.where(counts, further, found)
    return found * (0.5 ** (len(roots) + 1) if needed is None else 0.5 * torch.exp2(-needed))


def _roots(skew: Tensor) -> list[tuple[Tensor, Tensor | None]]:
    """exp(A / 2^s), ..., exp(A / 2), exp(A), each with whether the next is its square or, where None, that it is."""
    scaled, needed, count = _scaled(skew)
    found = [series(scaled)]
    counts = [None if needed is None else step < needed for step in range(count)]
    for one in counts:
        square = product(found[-1], found[-1])
        found.append(square if one is None else torch.where(one, square, found[-1]))
    return list(zip(found, [*counts, None], strict=True))


def _scaled(skew: Tensor) -> tuple[Tensor, Tensor | None, int]:
    """A / 2^s, for s the number of squarings that is needed, None where it is the third: how many are to be done."""
    reach = 1.5 if skew.dtype == torch.float32 else 0.3  # where degree 12 is exact to rounding
    norms = skew.square().sum((-2, -1)).amax().div(2).sqrt()  # bounds the spectral norm of a skew A
    needed = (norms / reach).clamp(min=1).log2().ceil()
    if skew.device.type == "cpu" and not torch.compiler.is_compiling():
        count = int(needed)
        return skew * 0.5**count, None, count
    reduced = torch.where(needed > SQUARINGS, torch.nan, torch.exp2(-needed))  # seen, and not merely wrong
    return skew * reduced, needed, SQUARINGS
