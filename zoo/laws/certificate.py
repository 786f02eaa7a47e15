"""What was found of one encoding under all laws, as plain data."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from traceback import extract_tb
from typing import Any, Literal, Self

import torch

from zoo.errors import DataError
from zoo.laws.law import Broken, Figure, Law, Ledger
from zoo.laws.member import Member
from zoo.laws.rounding import Rounding


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A law and an encoding. `axes` are those that it was tried on, or broken on; `told` says how, or why it is exempt."""

    law: str
    outcome: Literal["kept", "broken", "exempt"]
    axes: tuple[int, ...] = ()
    told: str = ""
    figure: Figure | None = None


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
    known = None if figure is None else Figure(float(figure["value"]), float(figure["bound"]), figure["kind"])
    return Finding(figure=known, axes=tuple(axes), **rest)


def examined(law: Law, members: Sequence[Member]) -> Finding:
    """What a law finds of an encoding on all its numbers of axes: broken where any is, kept where any is.

    Of figures, that nearest to its bound.
    """
    findings = [tried(law, member) for member in members]
    worst = next(one for outcome in ("broken", "kept", "exempt") for one in findings if one.outcome == outcome)
    alike = [one for one in findings if one.outcome == worst.outcome]
    figures = [one.figure for one in alike if one.figure]
    axes = tuple(number for one in alike for number in one.axes)
    return replace(worst, axes=axes, figure=max(figures, key=lambda figure: figure.share, default=None))


def tried(law: Law, member: Member) -> Finding:
    """What a law finds of a member, always from the same random numbers; whatever it raises breaks the law."""
    seen, told = Ledger(), ""
    with torch.random.fork_rng([]):
        try:
            _ = member.facts, member.head  # made once, which draws numbers
            if why := law.exempt(member):  # which may make another one
                return Finding(law=law.name, outcome="exempt", told=why)
            torch.manual_seed(0)
            law.check(member, seen)
        except Broken as broken:
            told = str(broken)
        except Exception as error:  # of the encoding, whatever it is
            told = f"{type(error).__name__}{_place(error, member)}: {' '.join(str(error).split())[:300]}"
    outcome: Literal["kept", "broken"] = "broken" if told else "kept"
    return Finding(law=law.name, outcome=outcome, axes=(member.axes,), told=told, figure=seen.figure)


def _place(error: Exception, member: Member) -> str:
    """The last line of the encoding's own file that led to an error."""
    own = {inspect.getsourcefile(type(link)) for link in member.facts}
    lines = [frame for frame in extract_tb(error.__traceback__) if frame.filename in own]
    return f" in {Path(lines[-1].filename).name}, line {lines[-1].lineno}" if lines else ""
