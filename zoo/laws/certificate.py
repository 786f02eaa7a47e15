"""Certificates with the outcome of every law for an encoding and rounding errors of its scores."""

from __future__ import annotations

import inspect
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

from zoo.attention import functional
from zoo.attention.encoding import Encoding
from zoo.errors import DataError, OptionError
from zoo.laws.attention_stack import perturb
from zoo.laws.case import TOKENS, Case
from zoo.laws.law import Law, LawBroken, Measurement, Recorder, relative_error
from zoo.utils import read_json

POSITIONS = (100, 1_000, 10_000, 100_000, 1_000_000)
DTYPES = (
    ("float32", "float32"),
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
)
"""(dtype of queries and keys, dtype of parameters). Half precision with float32 is autocast."""


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """The largest error of a score at a position, relative to 1 + |score|.

    Attributes:
        head_dtype: Dtype of queries and keys.
        weight_dtype: Dtype of parameters.
        position: Position of half of the tokens; the others are at the start.
        error: The error, or None if the scores are refused or not finite.
        reason: Reason for a missing error.
        broken: True for an exception, or for float32 scores that are not finite.
    """

    head_dtype: str
    weight_dtype: str
    position: int
    error: float | None
    reason: str = ""
    broken: bool = False


def measure_roundings(cases: Sequence[Case]) -> Iterator[Rounding]:
    """Yield the worst rounding of all cases for each pair of dtypes and each position."""
    for (heads, weights), position in product(DTYPES, POSITIONS):
        yield max((_measure(case, heads, weights, position) for case in cases), key=_severity)


def _severity(rounding: Rounding) -> tuple[bool, float]:
    return rounding.broken, -1.0 if rounding.error is None else rounding.error


def _measure(case: Case, heads: str, weights: str, position: int) -> Rounding:
    error, reason, broken = None, "", False
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        try:
            error = _score_error(case, getattr(torch, heads), getattr(torch, weights), position)
            if error is None:
                reason, broken = "not finite", heads == "float32"
        except OptionError as refusal:
            reason = _one_line(refusal, 200)
        # Any error of the encoding is a result of the measurement.
        except Exception as failure:
            reason, broken = f"{type(failure).__name__}: {_one_line(failure, 200)}", True
    return Rounding(
        head_dtype=heads,
        weight_dtype=weights,
        position=position,
        error=error,
        reason=reason,
        broken=broken,
    )


def _one_line(error: Exception, length: int) -> str:
    return " ".join(str(error).split())[:length]


def _score_error(
    case: Case, heads: torch.dtype, weights: torch.dtype, position: int
) -> float | None:
    """Return the largest error of a score, or None if one is not finite."""
    encoding, x = case.build().eval(), case.states().to(heads)
    perturb(encoding)
    exact = deepcopy(encoding).double()
    # Half of the tokens are at the start and half at the position: short and long distances.
    pos = case.positions() + position * (torch.arange(TOKENS)[:, None] >= TOKENS // 2)
    with torch.autocast("cpu", heads) if weights != heads else nullcontext():
        scores = _scores(encoding.to(weights), x, pos.float(), case)
    expected = _scores(exact, x.double(), pos, case)
    visible = expected != -torch.inf
    error = relative_error(scores.double()[visible], expected[visible])
    return error if isfinite(error) else None


def _scores(encoding: Encoding, x: Tensor, pos: Tensor, case: Case) -> Tensor:
    """Return scores [B, H, N, N] of embedded states as queries and keys."""
    states = functional.embed(encoding, x, pos).to(x.dtype)
    heads = states.unflatten(-1, (case.heads, case.head_dim)).transpose(1, 2)
    return functional.scores(encoding, heads, heads, pos, x=x, causal=case.facts.causal_only)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of a law for an encoding.

    Attributes:
        law: Name of the law.
        outcome: "kept", "broken", or "exempt" if the law does not apply.
        axes: Numbers of axes with this outcome.
        detail: How the law is broken, or why it does not apply.
        measurement: The measurement closest to its bound.
    """

    law: str
    outcome: Literal["kept", "broken", "exempt"]
    axes: tuple[int, ...] = ()
    detail: str = ""
    measurement: Measurement | None = None


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Findings and roundings of an encoding, or of a list of encodings.

    Attributes:
        name: Name of the encoding, or names joined by `+`.
        facts: {name of a link: {fact: description}}.
        axes: Numbers of axes that were checked.
        findings: One for each law.
        roundings: One for each pair of dtypes and each position.
        zoo: Version of zoo.
        torch: Version of PyTorch.
        created: Time at the end, UTC.
        command: The command that was run.
        partial: True if it was stopped early.
        renamed_keys: Version that renamed the keys of the file, if it is older.
        added_by: Later command that added the findings of newer laws.
    """

    name: str
    facts: Mapping[str, Mapping[str, str]]
    axes: tuple[int, ...]
    findings: tuple[Finding, ...]
    roundings: tuple[Rounding, ...]
    zoo: str
    torch: str
    created: str
    command: str
    partial: bool = False
    renamed_keys: str | None = None
    added_by: str | None = None

    def with_outcome(self, outcome: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.outcome == outcome]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, in which an infinite measurement is a string."""
        data = asdict(self)
        for finding in data["findings"]:
            measurement = finding["measurement"]
            if measurement and not abs(measurement["value"]) < float("inf"):
                measurement["value"] = str(measurement["value"])
        return data

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a certificate.

        Raises:
            DataError: The file does not contain one.
        """
        data = read_json(path, "holds no certificate")
        try:
            data["findings"] = tuple(_read_finding(**entry) for entry in data["findings"])
            data["roundings"] = tuple(Rounding(**entry) for entry in data["roundings"])
            return cls(**{**data, "axes": tuple(data["axes"])})
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{path}: holds no certificate") from None


def _read_finding(
    measurement: Mapping[str, Any] | None, axes: Sequence[int], **values: Any
) -> Finding:
    checked = None
    if measurement is not None:
        value, bound = float(measurement["value"]), float(measurement["bound"])
        checked = Measurement(value, bound, measurement["kind"])
    return Finding(measurement=checked, axes=tuple(axes), **values)


def examine(law: Law, cases: Sequence[Case]) -> Finding:
    """Check a law on all cases of an encoding.

    It is broken if any case breaks it, otherwise kept if any case keeps it. Of several
    measurements the closest to its bound is reported.
    """
    findings = [try_law(law, case) for case in cases]
    severity = ("broken", "kept", "exempt")
    worst = min(findings, key=lambda finding: severity.index(finding.outcome))
    alike = [finding for finding in findings if finding.outcome == worst.outcome]
    measurements = [finding.measurement for finding in alike if finding.measurement]
    closest = max(measurements, key=lambda measurement: measurement.bound_ratio, default=None)
    axes = tuple(number for finding in alike for number in finding.axes)
    return replace(worst, axes=axes, measurement=closest)


def try_law(law: Law, case: Case) -> Finding:
    """Check a law on one case, with a fixed seed. Any exception breaks the law."""
    recorder, detail = Recorder(), ""
    with torch.random.fork_rng([]):
        try:
            # Both are cached here, because building them draws random numbers.
            _ = case.facts, case.head_dim
            if reason := law.exempt(case):
                return Finding(law=law.name, outcome="exempt", detail=reason)
            torch.manual_seed(0)
            law.check(case, recorder)
        except LawBroken as broken:
            detail = str(broken)
        # Any error of the encoding breaks the law.
        except Exception as error:
            where = _location(error, case)
            detail = f"{type(error).__name__}{where}: {_one_line(error, 300)}"
    return Finding(
        law=law.name,
        outcome="broken" if detail else "kept",
        axes=(case.axes,),
        detail=detail,
        measurement=recorder.measurement,
    )


def _location(error: Exception, case: Case) -> str:
    """Return the last line of the traceback in the encoding's own file, as text."""
    sources = {inspect.getsourcefile(type(link)) for link in case.facts}
    lines = [frame for frame in extract_tb(error.__traceback__) if frame.filename in sources]
    return f" in {Path(lines[-1].filename).name}, line {lines[-1].lineno}" if lines else ""
