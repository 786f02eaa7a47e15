"""Many small matrices that are sums of a few, A_t = sum_p t_p A_p: made, a part of them at a time, and gone back from.

Where elements lie outermost (`blocks.small`) they are made so, and no sum over all of them is ever laid out anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.encodings.parts.blocks import small

CACHED = 2**18  # numbers in what is multiplied at once: more leave the cache, of fewer each operation's own cost tells


def parts(times: Tensor, generators: Tensor) -> tuple[Tensor, ...]:
    """Times [T, P] as several, of which each makes as many matrices as are multiplied fastest."""
    if not small(generators):
        return (times,)
    return times.split(max(CACHED // generators[0].numel(), 1))


def summed(generators: Tensor, times: Tensor) -> Tensor:
    """sum_p times[t, p] generators[p] of matrices [P, K, b, b], as [T K, b, b]."""
    if not small(generators):
        return torch.einsum("tp,pkij->tkij", times, generators).flatten(0, 1)
    first, *others = generators.permute(0, 2, 3, 1).unsqueeze(3)  # [b, b, 1, K] each
    out = first * times[:, 0, None]
    for number, other in enumerate(others, start=1):
        out.addcmul_(other, times[:, number, None])
    return out.flatten(2).movedim(2, 0)


def weighed(gradient: Tensor, times: Tensor) -> Tensor:
    """The gradient to generators [P, K, b, b] from that to their sums [T K, b, b]."""
    each = gradient.unflatten(0, (len(times), -1))
    if not small(gradient):
        return torch.einsum("tkij,tp->pkij", each, times)
    return (times.mT @ each.permute(2, 3, 0, 1)).permute(2, 3, 0, 1)


def against(gradient: Tensor, generators: Tensor) -> Tensor:
    """The gradient to times [T, P] from that to sums [T K, b, b]."""
    return torch.einsum("tkij,pkij->tp", gradient.unflatten(0, (-1, generators.shape[1])), generators)


def joined(made: Sequence[Tensor], times: Sequence[Tensor]) -> Tensor:
    """What was made of the sums of each part of times, [T K, b, b], as one [T, K, b, b]."""
    each = [one.unflatten(0, (len(part), -1)) for one, part in zip(made, times, strict=True)]
    return each[0] if len(each) == 1 else torch.cat([one.permute(2, 3, 0, 1) for one in each], 2).permute(2, 3, 0, 1)
