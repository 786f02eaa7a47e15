"""How far off scores are in less than float64, near the start and a million places on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from math import isfinite

import torch
from torch import Tensor

from zoo import functions
from zoo.attention.encoding import Encoding
from zoo.errors import Invalid
from zoo.laws.law import error
from zoo.laws.member import HEADS, TOKENS, Member
from zoo.laws.stack import perturb

PLACES = (100, 1_000, 10_000, 100_000, 1_000_000)
HALVES = ("float16", "bfloat16")
WAYS = (("float32", "float32"), *((half, "float32") for half in HALVES), *((half, half) for half in HALVES))
"""(dtype of queries and keys, dtype of weights): with weights in float32, halves are those of autocast."""


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """The largest error of a score relative to 1 + |score|, or why there is none: refused, past what a half holds, or `broken`:
    another error, or scores in float32 that are not finite.
    """

    heads: str
    weights: str
    place: int
    error: float | None
    why: str = ""
    broken: bool = False


def roundings(members: Sequence[Member]) -> Iterator[Rounding]:
    """One for each way and place: the worst on any number of axes."""
    for (heads, weights), place in product(WAYS, PLACES):
        yield max((_rounding(member, heads, weights, place) for member in members), key=_severity)


def _severity(one: Rounding) -> tuple[bool, float]:
    return one.broken, -1.0 if one.error is None else one.error


def _rounding(member: Member, heads: str, weights: str, place: int) -> Rounding:
    found, why, broken = None, "", False
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        try:
            found = _error(member, getattr(torch, heads), getattr(torch, weights), place)
            if found is None:
                why, broken = "not finite", heads == "float32"
        except Invalid as refusal:
            why = " ".join(str(refusal).split())[:200]
        except Exception as error:  # of the encoding, whatever it is
            why, broken = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", True
    return Rounding(heads=heads, weights=weights, place=place, error=found, why=why, broken=broken)


def _error(member: Member, heads: torch.dtype, weights: torch.dtype, place: int) -> float | None:
    """None where it is not finite."""
    encoding, x = member.make().eval(), member.states().to(heads)
    perturb(encoding)
    exact = deepcopy(encoding).double()
    # half of the tokens stand at the start and half at the place, so that there are short and long ways
    pos = member.pos() + place * (torch.arange(TOKENS)[:, None] >= TOKENS // 2)
    with torch.autocast("cpu", heads) if weights != heads else nullcontext():
        rounded = _scores(encoding.to(weights), x, pos.float(), member)
    expected = _scores(exact, x.double(), pos, member)
    visible = expected != -torch.inf
    off = error(rounded.double()[visible], expected[visible])
    return off if isfinite(off) else None


def _scores(encoding: Encoding, x: Tensor, pos: Tensor, member: Member) -> Tensor:
    """Scores [B, H, N, N] where queries and keys are what the encoding makes of the states themselves."""
    states = functions.embed(encoding, x, pos).to(x.dtype)
    heads = states.unflatten(-1, (HEADS, member.head)).transpose(1, 2)
    return functions.scores(encoding, heads, heads, pos, x=x, causal=member.facts.causal)
