"""Taylor series of small skew-symmetric matrices: their exponential, and the derivative of that."""

from __future__ import annotations

from math import factorial

from torch import Tensor

from zoo.encodings.parts.blocks import product

TERMS = 13  # of the derivative, as exact as degree 12 is where |ad A| is at most sqrt(2) times the bound on |A|


def series(a: Tensor) -> Tensor:
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


def phi(a: Tensor, w: Tensor) -> Tensor:
    """W + [A, W] / 2! + [A, [A, W]] / 3! + ... for skew-symmetric A and W, whose commutator is AW - (AW)^T."""
    found = w.clone()
    for k in range(2, TERMS + 2):
        half = product(a, w)
        w = half - half.mT
        found.add_(w, alpha=1 / factorial(k))
    return found
