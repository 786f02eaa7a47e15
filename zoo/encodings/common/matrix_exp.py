"""The exponential of many small skew-symmetric matrices: a Taylor series of fixed degree, scaled and squared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from zoo.attention import upcast

SMALL = 8  # rows up to which elements are faster: at 8 a third of the time of batches, at 16 two and a half times


def small(matrices: Tensor) -> bool:
    """Whether matrices [..., b, b] are multiplied element by element."""
    return (
        matrices.shape[-1] <= SMALL
        and matrices.device.type == "cpu"
        and not torch.compiler.is_compiling()
    )


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a @ b for [..., b, b]."""
    if not small(a):
        return a @ b
    (column, *columns), (row, *rows) = a.split(1, dim=-1), b.split(1, dim=-2)
    return _added(column * row, columns, rows)


def add_product(onto: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """onto + a @ b for [..., b, b]; what was there may be overwritten."""
    return _added(onto, a.split(1, dim=-1), b.split(1, dim=-2)) if small(a) else onto + a @ b


def _added(onto: Tensor, columns: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
    for column, row in zip(columns, rows, strict=True):
        onto.addcmul_(column, row)
    return onto


def rotate_blocks(x: Tensor, rotations: Tensor) -> Tensor:
    """Heads x [B, H, N, K] turned by rotations [1|B, H, N, m, b, b], block by block. Channels beyond stay."""
    width = rotations.shape[3] * rotations.shape[-1]
    if width < x.shape[-1]:
        return torch.cat([rotate_blocks(x[..., :width], rotations), x[..., width:]], dim=-1)
    if small(rotations):
        return _Turn.apply(x, rotations)  # type: ignore[no-untyped-call]
    blocks, matrices = x.unflatten(-1, rotations.shape[3:5]), rotations.to(x.dtype)
    if len(matrices) == 1:
        return torch.einsum("hnmij,bhnmj->bhnmi", matrices[0], blocks).flatten(-2)
    return torch.einsum("bhnmij,bhnmj->bhnmi", matrices, blocks).flatten(-2)


class _Turn(torch.autograd.Function):
    """Turning by small matrices, whose gradient is summed over samples as soon as it is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rotations: Tensor) -> Tensor:
        columns, matrices = _columns(x, rotations), _elements(rotations)
        ctx.save_for_backward(columns, rotations)
        return _heads(_times(matrices, columns)).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable  # the columns are kept, not the heads that they were made of
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        columns, rotations = ctx.saved_tensors
        rows, matrices = _columns(gradient, rotations), _elements(rotations)
        to_x = _heads(_times(matrices.transpose(1, 2), rows)).to(gradient.dtype)
        return to_x, _outer(rows, columns, len(rotations)) if ctx.needs_input_grad[1] else None


def _columns(x: Tensor, rotations: Tensor) -> Tensor:
    """Heads [B, H, N, K] as [B, b, N, H, m]: elements outermost, then tokens before heads, as projections lie."""
    blocks = upcast(x).to(rotations.dtype).unflatten(-1, rotations.shape[3:5])
    return blocks.permute(0, 4, 2, 1, 3).contiguous()


def _heads(columns: Tensor) -> Tensor:
    return columns.permute(0, 2, 3, 4, 1).flatten(-2).transpose(1, 2)


def _elements(rotations: Tensor) -> Tensor:
    """[1|B, H, N, m, b, b] as [1|B, b, b, N, H, m]"""
    return rotations.permute(0, 4, 5, 2, 1, 3)


def _times(matrices: Tensor, columns: Tensor) -> Tensor:
    out = matrices[:, :, 0] * columns[:, :1]  # [B, b, N, H, m]
    for j in range(1, matrices.shape[2]):
        out.addcmul_(matrices[:, :, j], columns[:, j : j + 1])
    return out


def _outer(rows: Tensor, columns: Tensor, batch: int) -> Tensor:
    """Rows times columns of each block, summed over samples unless there are matrices for each: [1|B, H, N, m, b, b]."""
    rows, columns = rows[:, :, None], columns[:, None]
    out = rows[:batch] * columns[:batch]
    for sample in range(batch, len(rows)):
        out[0].addcmul_(rows[sample], columns[sample])
    return out.permute(0, 4, 3, 5, 1, 2)


CACHED = (
    2**18
)  # numbers in what is multiplied at once: more leave the cache, of fewer each operation's own cost tells


def split_times(times: Tensor, generators: Tensor) -> tuple[Tensor, ...]:
    """Times [T, P] as several, of which each makes as many matrices as are multiplied fastest."""
    if not small(generators):
        return (times,)
    return times.split(max(CACHED // generators[0].numel(), 1))


def combine_generators(generators: Tensor, times: Tensor) -> Tensor:
    """sum_p times[t, p] generators[p] of matrices [P, K, b, b], as [T K, b, b]."""
    if not small(generators):
        return torch.einsum("tp,pkij->tkij", times, generators).flatten(0, 1)
    first, *others = generators.permute(0, 2, 3, 1).unsqueeze(3)  # [b, b, 1, K] each
    out = first * times[:, 0, None]
    for number, other in enumerate(others, start=1):
        out.addcmul_(other, times[:, number, None])
    return out.flatten(2).movedim(2, 0)


def generator_gradient(gradient: Tensor, times: Tensor) -> Tensor:
    """The gradient to generators [P, K, b, b] from that to their sums [T K, b, b]."""
    each = gradient.unflatten(0, (len(times), -1))
    if not small(gradient):
        return torch.einsum("tkij,tp->pkij", each, times)
    return (times.mT @ each.permute(2, 3, 0, 1)).permute(2, 3, 0, 1)


def time_gradient(gradient: Tensor, generators: Tensor) -> Tensor:
    """The gradient to times [T, P] from that to sums [T K, b, b]."""
    return torch.einsum(
        "tkij,pkij->tp", gradient.unflatten(0, (-1, generators.shape[1])), generators
    )


def join_parts(made: Sequence[Tensor], times: Sequence[Tensor]) -> Tensor:
    """What was made of the sums of each part of times, [T K, b, b], as one [T, K, b, b]."""
    each = [one.unflatten(0, (len(part), -1)) for one, part in zip(made, times, strict=True)]
    return (
        each[0]
        if len(each) == 1
        else torch.cat([one.permute(2, 3, 0, 1) for one in each], 2).permute(2, 3, 0, 1)
    )


B0 = (
    -0.01860232051462055322,
    -0.00500702322573317730,
    -0.57342012296052226390,
    -0.13339969394389205970,
)
B1 = (4.6, 0.99287510353848683614, -0.13244556105279963884, 0.00172990000000000000)
B2 = (
    0.21169311829980944294,
    0.15822438471572672537,
    0.16563516943672741501,
    0.01078627793157924250,
)
B3 = (0.0, -0.13181061013830184015, -0.02027855540589259079, -0.00675951846863086359)


def taylor_forward(a: Tensor) -> tuple[Tensor, ...]:
    """1 + A + ... + A^12 / 12!, and what the way back needs of it: A^2, A^3, C."""
    a2 = multiply(a, a)
    powers = a, a2, multiply(a2, a)
    b3 = _cubic(B3, powers)
    c = add_product(_cubic(B2, powers), b3, b3)
    return add_product(_cubic(B0, powers), _cubic(B1, powers).add_(c), c), *powers[1:], c


def taylor_backward(gradient: Tensor, a: Tensor, a2: Tensor, a3: Tensor, c: Tensor) -> Tensor:
    """The gradient to A, skew-symmetric as A is, from that to the series."""
    b1, b3 = _cubic(B1, (a, a2, a3)), _cubic(B3, (a, a2, a3))
    to_b1 = multiply(gradient, c.mT)
    to_c = add_product(to_b1.clone(), b1.add_(c).mT, gradient)
    to_b3 = add_product(multiply(to_c, b3.mT), b3.mT, to_c)
    to_all = gradient, to_b1, to_c, to_b3
    to_a, to_a2, to_a3 = (
        _weighed(numbers, to_all) for numbers in list(zip(B0, B1, B2, B3, strict=True))[1:]
    )
    to_a2.sub_(multiply(to_a3, a))  # A^3 is A^2 A, and the transpose of A is -A
    to_a = add_product(to_a, a2, to_a3)
    to_a.sub_(
        multiply(to_a2 + to_a2.mT, a)
    )  # of A^2 no more is left than this, once what is symmetric is dropped
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


Way = tuple[
    list[Tensor], Tensor | None
]  # what leads back, and how often A was halved unless that is told by it
SQUARINGS = 16  # where the count cannot be read off the norms: a compiler, a GPU that must not wait for its host


def skew_matrix_exp(skew: Tensor, times: Tensor) -> Tensor:
    """exp(sum_p t_p A_p), [T, K, b, b], of skew-symmetric A [P, K, b, b] and t [T, P], to the precision of the wider dtype.

    The gradient to A is skew-symmetric too.
    """
    dtype = torch.promote_types(skew.dtype, times.dtype)
    return _Exponential.apply(skew.to(dtype), times.to(dtype))  # type: ignore[no-untyped-call]


class _Exponential(torch.autograd.Function):
    """A, t -> exp. What is made on the way is kept where matrices are small, or else made again going backward."""

    @staticmethod
    def forward(ctx: Any, skew: Tensor, times: Tensor) -> Tensor:
        each = split_times(times, skew)
        powers, ways, _ = zip(
            *(_powers(combine_generators(skew, part)) for part in each), strict=True
        )
        ctx.counts = [len(way) for way in ways] if small(skew) else []
        ctx.save_for_backward(skew, times, *(kept for way in ways for kept in way if ctx.counts))
        return join_parts(powers, each)

    @staticmethod
    @torch.autograd.function.once_differentiable  # what is kept knows nothing of where it came from
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        skew, times, *kept = ctx.saved_tensors
        each = split_times(times, skew)
        ends = list(accumulate(ctx.counts))
        ways: list[Way] = [
            (kept[end - count : end], None) for end, count in zip(ends, ctx.counts, strict=True)
        ]
        ways = ways or [_powers(combine_generators(skew, part))[1:] for part in each]
        towards = (part.flatten(0, 1) for part in gradient.split([len(part) for part in each]))
        found = [_back(one, *way) for one, way in zip(towards, ways, strict=True)]
        to_skew = torch.stack(
            [generator_gradient(*pair) for pair in zip(found, each, strict=True)]
        ).sum(0)
        to_times = (
            torch.cat([time_gradient(one, skew) for one in found])
            if ctx.needs_input_grad[1]
            else None
        )
        return to_skew, to_times


def _powers(skew: Tensor) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """exp(A), and its `Way`: A halved, in its own place, what the series of that left, and all that was squared."""
    needed, count = _halvings(skew)
    scaled = skew.mul_(0.5**count if needed is None else _power(needed))
    power, *inner = taylor_forward(scaled)
    way = [scaled, *inner]
    for step in range(count):
        way.append(power)
        square = multiply(power, power)
        power = square if needed is None else torch.where(step < needed, square, power)
    return power, way, needed


def _back(gradient: Tensor, way: list[Tensor], needed: Tensor | None) -> Tensor:
    """The gradient to A of that to exp(A): each square has it of both its factors."""
    scaled, a2, a3, c, *roots = way
    for step in reversed(range(len(roots))):
        root = roots[step].mT
        further = add_product(multiply(gradient, root), root, gradient)
        gradient = further if needed is None else torch.where(step < needed, further, gradient)
    return taylor_backward(gradient, scaled, a2, a3, c).mul_(
        0.5 ** len(roots) if needed is None else _power(needed)
    )


def _halvings(skew: Tensor) -> tuple[Tensor | None, int]:
    """How often A is to be halved for its series to be exact, None where it is the second: how often it is to be squared."""
    reach = 1.5 if skew.dtype == torch.float32 else 0.3  # where degree 12 is exact to rounding
    norms = skew.square().sum((-2, -1)).amax().div(2).sqrt()  # bounds the spectral norm of a skew A
    needed = (norms / reach).clamp(min=1).log2().ceil()
    if skew.device.type == "cpu" and not torch.compiler.is_compiling():
        return None, int(needed)
    return needed, SQUARINGS


def _power(needed: Tensor) -> Tensor:
    return torch.where(
        needed > SQUARINGS, torch.nan, torch.exp2(-needed)
    )  # seen, and not merely wrong
