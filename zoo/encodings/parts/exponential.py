"""The exponential of many small skew-symmetric matrices: a Taylor series of fixed degree, scaled and squared."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.parts.blocks import plus_product, product, small
from zoo.encodings.parts.families import against, joined, parts, summed, weighed
from zoo.encodings.parts.series import back, series

Way = tuple[list[Tensor], Tensor | None]  # what leads back, and how often A was halved unless that is told by it
SQUARINGS = 16  # where the count cannot be read off the norms: a compiler, a GPU that must not wait for its host


def exponential(skew: Tensor, times: Tensor) -> Tensor:
    """exp(sum_p t_p A_p), [T, K, b, b], of skew-symmetric A [P, K, b, b] and t [T, P], to the precision of the wider dtype.

    The gradient to A is skew-symmetric too.
    """
    dtype = torch.promote_types(skew.dtype, times.dtype)
    return _Exponential.apply(skew.to(dtype), times.to(dtype))  # type: ignore[no-untyped-call]


class _Exponential(torch.autograd.Function):
    """A, t -> exp. What is made on the way is kept where matrices are small, or else made again going backward."""

    @staticmethod
    def forward(ctx: Any, skew: Tensor, times: Tensor) -> Tensor:
        each = parts(times, skew)
        powers, ways, _ = zip(*(_powers(summed(skew, part)) for part in each), strict=True)
        ctx.counts = [len(way) for way in ways] if small(skew) else []
        ctx.save_for_backward(skew, times, *(kept for way in ways for kept in way if ctx.counts))
        return joined(powers, each)

    @staticmethod
    @torch.autograd.function.once_differentiable  # what is kept knows nothing of where it came from
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        skew, times, *kept = ctx.saved_tensors
        each = parts(times, skew)
        ends = list(accumulate(ctx.counts))
        ways: list[Way] = [(kept[end - count : end], None) for end, count in zip(ends, ctx.counts, strict=True)]
        ways = ways or [_powers(summed(skew, part))[1:] for part in each]
        towards = (part.flatten(0, 1) for part in gradient.split([len(part) for part in each]))
        found = [_back(one, *way) for one, way in zip(towards, ways, strict=True)]
        to_skew = torch.stack([weighed(*pair) for pair in zip(found, each, strict=True)]).sum(0)
        to_times = torch.cat([against(one, skew) for one in found]) if ctx.needs_input_grad[1] else None
        return to_skew, to_times


def _powers(skew: Tensor) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """exp(A), and its `Way`: A halved, in its own place, what the series of that left, and all that was squared."""
    needed, count = _halvings(skew)
    scaled = skew.mul_(0.5**count if needed is None else _power(needed))
    power, *inner = series(scaled)
    way = [scaled, *inner]
    for step in range(count):
        way.append(power)
        square = product(power, power)
        power = square if needed is None else torch.where(step < needed, square, power)
    return power, way, needed


def _back(gradient: Tensor, way: list[Tensor], needed: Tensor | None) -> Tensor:
    """The gradient to A of that to exp(A): each square has it of both its factors."""
    scaled, a2, a3, c, *roots = way
    for step in reversed(range(len(roots))):
        root = roots[step].mT
        further = plus_product(product(gradient, root), root, gradient)
        gradient = further if needed is None else torch.where(step < needed, further, gradient)
    return back(gradient, scaled, a2, a3, c).mul_(0.5 ** len(roots) if needed is None else _power(needed))


def _halvings(skew: Tensor) -> tuple[Tensor | None, int]:
    """How often A is to be halved for its series to be exact, None where it is the second: how often it is to be squared."""
    reach = 1.5 if skew.dtype == torch.float32 else 0.3  # where degree 12 is exact to rounding
    norms = skew.square().sum((-2, -1)).amax().div(2).sqrt()  # bounds the spectral norm of a skew A
    needed = (norms / reach).clamp(min=1).log2().ceil()
    if skew.device.type == "cpu" and not torch.compiler.is_compiling():
        return None, int(needed)
    return needed, SQUARINGS


def _power(needed: Tensor) -> Tensor:
    return torch.where(needed > SQUARINGS, torch.nan, torch.exp2(-needed))  # seen, and not merely wrong
