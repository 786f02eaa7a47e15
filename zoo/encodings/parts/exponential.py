"""The exponential of many small skew-symmetric matrices: a Taylor series of fixed degree, scaled and squared."""

from __future__ import annotations

from collections.abc import Iterator
from math import factorial
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.parts.blocks import outermost, product

SQUARINGS = 12  # where the count cannot be read off the norms: a compiler, a GPU that must not wait for its host
TERMS = 15  # of the derivative's series, whose steps may be twice as long as those of the exponential


def exponential(skew: Tensor) -> Tensor:
    """exp(A) for skew-symmetric A [..., b, b], to the precision of its dtype. Its gradient is skew-symmetric too."""
    return _Exponential.apply(outermost(skew))  # type: ignore[no-untyped-call]


class _Exponential(torch.autograd.Function):
    """A -> exp(A). Roots of the result are made again going backward, not kept.

    d exp(A) = exp(A) phi(-ad A) dA, phi(z) = (exp(z) - 1) / z, ad A dA = A dA - dA A (Najfeld and Havel 1995), and
    2 phi(2 z) = (1 + exp(z)) phi(z), exp(ad A) W = exp(A) W exp(A)^T: the derivative is squared as the exponential is.
    """

    @staticmethod
    def forward(ctx: Any, skew: Tensor) -> Tensor:
        ctx.save_for_backward(skew)
        *_, (result, _) = _roots(skew)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (skew,) = ctx.saved_tensors
        *roots, (result, _) = _roots(skew)
        turned = product(result.mT, outermost(gradient))
        found = _phi(_scaled(skew)[0], turned - turned.mT) / 2
        for root, counts in roots:
            further = (found + product(product(root, found), root.mT)) / 2
            found = further if counts is None else torch.where(counts, further, found)
        return found


def _roots(skew: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    """exp(A / 2^s), ..., exp(A / 2), exp(A), each with whether the next is its square or, where None, that it is."""
    scaled, needed, count = _scaled(skew)
    result = _series(scaled)
    for step in range(count):
        counts = None if needed is None else step < needed
        yield result, counts
        square = product(result, result)
        result = square if counts is None else torch.where(counts, square, result)
    yield result, None


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
    one = torch.eye(a.shape[-1], device=a.device, dtype=a.dtype)
    a2 = product(a, a)
    a3, a4 = product(a2, a), product(a2, a2)

    def four(k: int) -> Tensor:  # 1/k! + A/(k+1)! + A^2/(k+2)! + A^3/(k+3)!
        terms = torch.add(one / factorial(k), a, alpha=1 / factorial(k + 1))
        return terms.add_(a2, alpha=1 / factorial(k + 2)).add_(a3, alpha=1 / factorial(k + 3))

    inner = four(4).add_(product(a4, four(8).add_(a4, alpha=1 / factorial(12))))
    return four(0).add_(product(a4, inner))


def _phi(a: Tensor, w: Tensor) -> Tensor:
    """W + [A, W] / 2! + [A, [A, W]] / 3! + ... for skew-symmetric A and W, whose commutator is AW - (AW)^T."""
    found, term = w, w
    for k in range(2, TERMS + 2):
        half = product(a, term)
        term = (half - half.mT) / k
        found = found + term
    return found
