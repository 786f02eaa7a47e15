"""The exponential of many small skew-symmetric matrices: a Taylor series of fixed degree, scaled and squared."""

from __future__ import annotations

from math import factorial
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.parts.blocks import joined, parts, plus_product, product

SQUARINGS = 12  # where the count cannot be read off the norms: a compiler, a GPU that must not wait for its host
TERMS = 13  # of the derivative's series, as exact as degree 12 is: |ad A| is at most sqrt(2) times the bound on |A| below


def exponential(skew: Tensor) -> Tensor:
    """exp(A) for skew-symmetric A [..., b, b], to the precision of its dtype. Its gradient is skew-symmetric too."""
    return _Exponential.apply(skew)  # type: ignore[no-untyped-call]


class _Exponential(torch.autograd.Function):
    """A -> exp(A). Roots of the result are made again going backward, not kept.

    d exp(A) = exp(A) phi(-ad A) dA, phi(z) = (exp(z) - 1) / z, ad A dA = A dA - dA A (Najfeld and Havel 1995), and
    2 phi(2 z) = (1 + exp(z)) phi(z), exp(ad A) W = exp(A) W exp(A)^T: the derivative is squared as the exponential is.
    """

    @staticmethod
    def forward(ctx: Any, skew: Tensor) -> Tensor:
        ctx.save_for_backward(skew)
        return joined([_roots(part)[-1][0] for part in parts(skew)], skew.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (skew,) = ctx.saved_tensors
        pairs = zip(parts(skew), parts(gradient), strict=True)
        return joined([_derivative(*pair) for pair in pairs], skew.shape)


def _derivative(skew: Tensor, gradient: Tensor) -> Tensor:
    """The gradient to A, skew-symmetric, of that to exp(A)."""
    scaled, needed, _ = _scaled(skew)
    *roots, (result, _) = _roots(skew)
    turned = product(result.mT, gradient)
    found = _phi(scaled, turned - turned.mT)
    for root, counts in roots:
        further = plus_product(found, product(root, found), root.mT)
        found = further if counts is None else torch.where(counts, further, found)
    return found * (0.5 ** (len(roots) + 1) if needed is None else 0.5 * torch.exp2(-needed))


def _roots(skew: Tensor) -> list[tuple[Tensor, Tensor | None]]:
    """exp(A / 2^s), ..., exp(A / 2), exp(A), each with whether the next is its square or, where None, that it is."""
    scaled, needed, count = _scaled(skew)
    found = [_series(scaled)]
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
    needed = needed.clamp(max=SQUARINGS)
    return skew * torch.exp2(-needed), needed, SQUARINGS


def _series(a: Tensor) -> Tensor:
    """1 + A + ... + A^12 / 12!, in five products (Paterson and Stockmeyer 1973)."""
    a2 = product(a, a)
    a3, a4 = product(a2, a), product(a2, a2)

    def four(onto: Tensor, k: int) -> Tensor:  # plus 1/k! + A/(k+1)! + A^2/(k+2)! + A^3/(k+3)!
        for step, power in enumerate((a, a2, a3), start=1):
            onto.add_(power, alpha=1 / factorial(k + step))
        onto.diagonal(dim1=-2, dim2=-1).add_(1 / factorial(k))
        return onto

    last = four(a4 / factorial(12), 8)
    inner = four(product(a4, last), 4)
    return four(product(a4, inner), 0)


def _phi(a: Tensor, w: Tensor) -> Tensor:
    """W + [A, W] / 2! + [A, [A, W]] / 3! + ... for skew-symmetric A and W, whose commutator is AW - (AW)^T."""
    found = w.clone()
    for k in range(2, TERMS + 2):
        half = product(a, w)
        w = half - half.mT
        found.add_(w, alpha=1 / factorial(k))
    return found
