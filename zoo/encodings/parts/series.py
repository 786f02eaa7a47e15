"""The Taylor series of the exponential of small skew-symmetric matrices, to degree 12, and the way back through it.

Four products make it (Bader, Blanes and Casas 2019, doi:10.3390/math7121174): of cubic polynomials B of A, with the numbers
below, it is B_0 + (B_1 + C) C, C = B_2 + B_3^2. Seven products lead back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from zoo.encodings.parts.blocks import plus_product, product

B0 = (-0.01860232051462055322, -0.00500702322573317730, -0.57342012296052226390, -0.13339969394389205970)
B1 = (4.6, 0.99287510353848683614, -0.13244556105279963884, 0.00172990000000000000)
B2 = (0.21169311829980944294, 0.15822438471572672537, 0.16563516943672741501, 0.01078627793157924250)
B3 = (0.0, -0.13181061013830184015, -0.02027855540589259079, -0.00675951846863086359)


def series(a: Tensor) -> tuple[Tensor, ...]:
    """1 + A + ... + A^12 / 12!, and what the way back needs of it: A^2, A^3, C."""
    a2 = product(a, a)
    powers = a, a2, product(a2, a)
    b3 = _cubic(B3, powers)
    c = plus_product(_cubic(B2, powers), b3, b3)
    return plus_product(_cubic(B0, powers), _cubic(B1, powers).add_(c), c), *powers[1:], c


def back(gradient: Tensor, a: Tensor, a2: Tensor, a3: Tensor, c: Tensor) -> Tensor:
    """The gradient to A, skew-symmetric as A is, from that to the series."""
    b1, b3 = _cubic(B1, (a, a2, a3)), _cubic(B3, (a, a2, a3))
    to_b1 = product(gradient, c.mT)
    to_c = plus_product(to_b1.clone(), b1.add_(c).mT, gradient)
    to_b3 = plus_product(product(to_c, b3.mT), b3.mT, to_c)
    to_all = gradient, to_b1, to_c, to_b3
    to_a, to_a2, to_a3 = (_weighed(numbers, to_all) for numbers in list(zip(B0, B1, B2, B3, strict=True))[1:])
    to_a2.sub_(product(to_a3, a))  # A^3 is A^2 A, and the transpose of A is -A
    to_a = plus_product(to_a, a2, to_a3)
    to_a.sub_(product(to_a2 + to_a2.mT, a))  # of A^2 no more is left than this, once what is symmetric is dropped
    return (to_a - to_a.mT) / 2


def _cubic(numbers: Sequence[float], powers: Iterable[Tensor]) -> Tensor:
    first, *others = numbers
    out = _weighed(others, powers)
    out.diagonal(dim1=-2, dim2=-1).add_(first)
    return out


def _weighed(numbers: Sequence[float], tensors: Iterable[Tensor]) -> Tensor:
    first, *others = tensors
    out = first * numbers[0]
    for number, tensor in zip(numbers[1:], others, strict=True):
        out.add_(tensor, alpha=number)
    return out
