"""The exponential of many small skew-symmetric matrices: a Taylor series of fixed degree, scaled and squared."""

from __future__ import annotations

import torch
from torch import Tensor

SQUARINGS = 12  # where the count cannot be read off the norms: a compiler, a GPU that must not wait for its host


def exponential(skew: Tensor) -> Tensor:
    """exp(A) for skew-symmetric A [..., b, b], to the precision of its dtype."""
    reach = 1.5 if skew.dtype == torch.float32 else 0.3  # where degree 12 is exact to rounding
    norms = skew.detach().square().sum((-2, -1), keepdim=True).div(2).sqrt()  # bounds the spectral norm of a skew A
    needed = (norms / reach).clamp(min=1).log2().ceil().amax()
    if skew.device.type == "cpu" and not torch.compiler.is_compiling():
        count = int(needed)
        result = _series(skew * 0.5**count)
        for _ in range(count):
            result = result @ result
        return result
    needed = needed.clamp(max=SQUARINGS)
    result = _series(skew * torch.exp2(-needed))
    for step in range(SQUARINGS):
        result = torch.where(step < needed, result @ result, result)
    return result


def _series(a: Tensor) -> Tensor:
    """1 + A + ... + A^12 / 12!, in five products (Paterson and Stockmeyer 1973)."""
    one = torch.eye(a.shape[-1], device=a.device, dtype=a.dtype)
    a2 = a @ a
    a3 = a2 @ a
    a4 = a2 @ a2

    def four(k: int) -> Tensor:  # 1/k! + A/(k+1)! + A^2/(k+2)! + A^3/(k+3)!
        return _inverse(k) * one + _inverse(k + 1) * a + _inverse(k + 2) * a2 + _inverse(k + 3) * a3

    return four(0) + a4 @ (four(4) + a4 @ (four(8) + _inverse(12) * a4))


def _inverse(k: int) -> float:
    """1 / k!"""
    result = 1.0
    for factor in range(2, k + 1):
        result /= factor
    return result
