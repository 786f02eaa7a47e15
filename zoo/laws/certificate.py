"""What was found of one encoding under all laws, as plain data."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import isfinite
from pathlib import Path
from traceback import extract_tb
from typing import Any, Literal, Self

import torch
from torch import Tensor

from zoo import api
from zoo.attention.encoding import Encoding
from zoo.errors import DataError, OptionError
from zoo.laws.case import HEADS, TOKENS, Case
from zoo.laws.law import Law, LawBroken, Measurement, Recorder, error
from zoo.laws.test_model import perturb

PLACES = (100, 1_000, 10_000, 100_000, 1_000_000)
HALVES = ("float16", "bfloat16")
WAYS = (
    ("float32", "float32"),
    *((half, "float32") for half in HALVES),
    *((half, half) for half in HALVES),
)
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


def roundings(members: Sequence[Case]) -> Iterator[Rounding]:
    """One for each way and place: the worst on any number of axes."""
    for (heads, weights), place in product(WAYS, PLACES):
        yield max((_rounding(member, heads, weights, place) for member in members), key=_severity)


def _severity(one: Rounding) -> tuple[bool, float]:
    return one.broken, -1.0 if one.error is None else one.error


def _rounding(member: Case, heads: str, weights: str, place: int) -> Rounding:
    found, why, broken = None, "", False
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        try:
            found = _error(member, getattr(torch, heads), getattr(torch, weights), place)
            if found is None:
                why, broken = "not finite", heads == "float32"
        except OptionError as refusal:
            why = " ".join(str(refusal).split())[:200]
        except Exception as error:  # of the encoding, whatever it is
            why, broken = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", True
    return Rounding(heads=heads, weights=weights, place=place, error=found, why=why, broken=broken)


def _error(member: Case, heads: torch.dtype, weights: torch.dtype, place: int) -> float | None:
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


def _scores(encoding: Encoding, x: Tensor, pos: Tensor, member: Case) -> Tensor:
    """Scores [B, H, N, N] where queries and keys are what the encoding makes of the states themselves."""
    states = api.embed(encoding, x, pos).to(x.dtype)
    heads = states.unflatten(-1, (HEADS, member.head)).transpose(1, 2)
    return api.scores(encoding, heads, heads, pos, x=x, causal=member.facts.causal_only)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A law and an encoding. `axes` are those that it was tried on, or broken on; `told` says how, or why it is exempt."""

    law: str
    outcome: Literal["kept", "broken", "exempt"]
    axes: tuple[int, ...] = ()
    told: str = ""
    figure: Measurement | None = None


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Findings of an encoding, or of a list of them, with what its links declare. `partial` where it was stopped."""

    name: str
    facts: Mapping[str, Mapping[str, str]]  # {name of a link: {fact: what it says}}
    axes: tuple[int, ...]
    findings: tuple[Finding, ...]
    roundings: tuple[Rounding, ...]
    zoo: str
    torch: str
    made: str
    command: str
    partial: bool = False

    def of(self, outcome: str) -> list[Finding]:
        return [one for one in self.findings if one.outcome == outcome]

    def plain(self) -> dict[str, Any]:
        """As JSON has it, which knows no infinity: such a figure is a text."""
        found = asdict(self)
        for one in found["findings"]:
            if one["figure"] and not abs(one["figure"]["value"]) < float("inf"):
                one["figure"]["value"] = str(one["figure"]["value"])
        return found

    @classmethod
    def read(cls, path: Path) -> Self:
        """The certificate that a file holds. Raises DataError where it holds none."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            found["findings"] = tuple(_finding(**one) for one in found["findings"])
            found["roundings"] = tuple(Rounding(**one) for one in found["roundings"])
            return cls(**{**found, "axes": tuple(found["axes"])})
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{path}: holds no certificate") from None


def _finding(figure: Mapping[str, Any] | None, axes: Sequence[int], **rest: Any) -> Finding:
    known = (
        None
        if figure is None
        else Measurement(float(figure["value"]), float(figure["bound"]), figure["kind"])
    )
    return Finding(figure=known, axes=tuple(axes), **rest)


def examined(law: Law, members: Sequence[Case]) -> Finding:
    """What a law finds of an encoding on all its numbers of axes: broken where any is, kept where any is.

    Of figures, that nearest to its bound.
    """
    findings = [tried(law, member) for member in members]
    worst = next(
        one
        for outcome in ("broken", "kept", "exempt")
        for one in findings
        if one.outcome == outcome
    )
    alike = [one for one in findings if one.outcome == worst.outcome]
    figures = [one.figure for one in alike if one.figure]
    axes = tuple(number for one in alike for number in one.axes)
    return replace(
        worst, axes=axes, figure=max(figures, key=lambda figure: figure.share, default=None)
    )


def tried(law: Law, member: Case) -> Finding:
    """What a law finds of a member, always from the same random numbers; whatever it raises breaks the law."""
    seen, told = Recorder(), ""
    with torch.random.fork_rng([]):
        try:
            _ = member.facts, member.head  # made once, which draws numbers
            if why := law.exempt(member):  # which may make another one
                return Finding(law=law.name, outcome="exempt", told=why)
            torch.manual_seed(0)
            law.check(member, seen)
        except LawBroken as broken:
            told = str(broken)
        except Exception as error:  # of the encoding, whatever it is
            told = f"{type(error).__name__}{_place(error, member)}: {' '.join(str(error).split())[:300]}"
    outcome: Literal["kept", "broken"] = "broken" if told else "kept"
    return Finding(
        law=law.name, outcome=outcome, axes=(member.axes,), told=told, figure=seen.figure
    )


def _place(error: Exception, member: Case) -> str:
    """The last line of the encoding's own file that led to an error."""
    own = {inspect.getsourcefile(type(link)) for link in member.facts}
    lines = [frame for frame in extract_tb(error.__traceback__) if frame.filename in own]
    return f" in {Path(lines[-1].filename).name}, line {lines[-1].lineno}" if lines else ""
