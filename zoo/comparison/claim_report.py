"""The report of `zoo compare claims`: the verdicts, and what each task leaves to be found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from zoo.comparison.claim_text import build_verdict_table, describe_claim, explain_verdicts
from zoo.comparison.claims import AFTER_RESULT, JudgedClaim, judge_comparison, percent
from zoo.comparison.condition_baselines import add_baselines
from zoo.comparison.outputs import collect_results
from zoo.comparison.overall import STYLES
from zoo.comparison.plan import ComparisonPlan
from zoo.comparison.results import Comparison
from zoo.comparison.statistics import POWER
from zoo.comparison.text import describe_unfinished, format_question, list_warnings
from zoo.errors import DataError
from zoo.packages import require, require_extra
from zoo.reporting.numbers import as_json, finite, format_fixed
from zoo.reporting.sections import ReportSection, SectionedReport, SectionTable, write_report

ROOM_HEADS = (
    "hypothesis",
    "written",
    "when trained",
    "baseline when trained",
    "where it is judged",
    "baseline there",
    "headroom",
    "flat at the end",
    "could have found",
)


@dataclass(frozen=True, kw_only=True)
class ClaimsOptions:
    """Options of judging the hypotheses of a comparison."""

    to: str | None = None
    """Folder for a page to publish, claims.html, claims.md and claims.json; null only prints."""


def judge_folder(
    folder: Path, options: ClaimsOptions
) -> tuple[Comparison, tuple[JudgedClaim, ...]]:
    """Judge the hypotheses of an output folder, and write the report if asked.

    Args:
        folder: The output folder of a comparison.
        options: The options.

    Raises:
        DataError: The folder holds no comparison, or one without hypotheses.
        PackageError: A package is missing that computes the intervals.
    """
    plan = ComparisonPlan.read(folder)
    if options.to is None:
        require("scipy")
    else:
        require_extra("compare")
    comparison = add_baselines(collect_results(plan, folder), folder)
    if not comparison.hypotheses:
        message = "no hypothesis was written"
        hint = "repeat its command with 'hypotheses=[rope > none]', which trains nothing anew"
        raise DataError(f"{message}; {hint}", place=folder)
    claims = judge_comparison(comparison)
    if options.to is not None:
        write_report(
            build_report(comparison, claims),
            Path(options.to),
            name="claims",
            page="claims.html",
            texts={"claims.json": as_json(finite(describe_claims(claims))) + "\n"},
            draw=None,
            styles=STYLES,
        )
    return comparison, claims


def describe_claims(claims: Sequence[JudgedClaim]) -> dict[str, object]:
    """Return the verdicts as plain data."""
    return {"claims": [describe_claim(claim) for claim in claims]}


def build_report(comparison: Comparison, claims: Sequence[JudgedClaim]) -> SectionedReport:
    """Return the report of the claims of a comparison."""
    return SectionedReport(
        kind="claims",
        title=f"What was claimed of {comparison.recipe}, and what holds",
        warnings=list_warnings(comparison),
        about=f"{format_question(comparison)} {describe_unfinished(comparison)}".strip(),
        sections=[
            ReportSection(
                key="verdicts",
                title="Verdicts",
                table=build_verdict_table(claims),
                sentences=[explain_verdicts(comparison)],
                items=[f"{flaw.kind}: {flaw.text}" for flaw in comparison.findings],
            ),
            ReportSection(
                key="room",
                title="What could have been found",
                table=build_room_table(claims),
                sentences=[explain_room()],
            ),
        ],
        command=comparison.command,
    )


def build_room_table(claims: Sequence[JudgedClaim]) -> SectionTable:
    """Return a row for each claim: what its task leaves to be found, and what could be found."""
    rows = [
        [
            claim.hypothesis.text,
            claim.recorded.written if claim.recorded else AFTER_RESULT,
            *_list_room(claim),
            _describe_end(claim),
            claim.power,
        ]
        for claim in claims
    ]
    return SectionTable(heads=ROOM_HEADS, rows=rows, left=ROOM_HEADS)


def _list_room(judged: JudgedClaim) -> Iterator[str]:
    room = judged.room
    if room is None:
        yield from [""] * 5
        return
    for levels, baseline, solved in (
        (room.trained, room.trained_baseline, {}),
        (room.levels, room.baseline, room.solved),
    ):
        yield ", ".join(
            f"{name} {format_fixed(value, judged.decimals)}"
            + (f" ({solved[name]})" if name in solved else "")
            for name, value in levels.items()
        )
        name, value = baseline or ("none recorded", None)
        shown = "" if value is None else f" {format_fixed(value, judged.decimals)}"
        yield f"{name}{shown}"
    yield format_fixed(room.headroom, judged.decimals) if isfinite(room.headroom) else "no bound"


def _describe_end(judged: JudgedClaim) -> str:
    """Return whether the variants of a claim were trained to the end."""
    if judged.room is None:
        return ""
    names = (judged.hypothesis.one, judged.hypothesis.other)
    steep = [name for name in names if name in judged.room.steep]
    return f"not {', '.join(steep)}" if steep else "both"


def explain_room() -> str:
    """Explain the table of room."""
    return (
        "Means of the two variants under the trained condition and where the claim is judged, with "
        "the best trivial baseline on the same samples. Headroom: how much better than the second "
        "variant another can be at most, at the upper end of what the interval of its mean allows. "
        f"Could have found: a true difference that is found with a power of {percent(POWER)}."
    )
