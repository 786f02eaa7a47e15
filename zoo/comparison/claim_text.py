"""The verdicts on claims as tables, sentences and plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from zoo.comparison.claims import MOST_STUDIES, JudgedClaim, judge_comparison
from zoo.comparison.hypotheses import find_metric, hash_hypotheses, parse_hypothesis
from zoo.comparison.results import Comparison
from zoo.reporting.numbers import format_p_value, pluralize
from zoo.reporting.sections import ReportSection, SectionTable

JUDGEMENT_HEADS = ("hypothesis", "verdict", "difference", "p", "rests on")


def build_hypotheses_section(comparison: Comparison) -> ReportSection | None:
    """Return the hypotheses with their verdicts; None if there are none."""
    if not comparison.hypotheses:
        return None
    return ReportSection(
        key="hypotheses",
        title="Hypotheses",
        table=build_verdict_table(judge_comparison(comparison)),
        sentences=[explain_verdicts(comparison)],
    )


def build_verdict_table(claims: Sequence[JudgedClaim]) -> SectionTable:
    """Return a row for each claim: its verdict and what that rests on."""
    rows = [
        [
            claim.hypothesis.text,
            claim.verdict,
            claim.difference,
            "" if claim.p_value is None else format_p_value(claim.p_value),
            claim.explanation,
        ]
        for claim in claims
    ]
    return SectionTable(heads=JUDGEMENT_HEADS, rows=rows, left=(*JUDGEMENT_HEADS[:2], "rests on"))


def explain_verdicts(comparison: Comparison) -> str:
    """Explain what the verdicts mean."""
    recorded = comparison.hypotheses
    where = comparison.trained.describe()
    metrics = {
        find_metric(comparison, parse_hypothesis(hypothesis.text)) for hypothesis in recorded
    }
    loss = " `>` says that a loss is higher, so worse." if "test/loss" in metrics else ""
    late = sum(bool(hypothesis.runs_ended) for hypothesis in recorded)
    count = pluralize(len(recorded) - late, "claim")
    return (
        f"Without another condition a hypothesis is about {where}. A difference is positive on the "
        f"claimed side. Its interval is corrected for the {count} that were written before the "
        "first run (Bonferroni), that of a later one for all; it rests on the noise of all "
        "variants and on the planned looks. Held: the interval lies on the claimed side of 0, "
        "above the margin if there is one, and the drops from the trained condition differ so "
        "too. Reversed: it lies on the other side. Our task cannot ask this: the second variant "
        f"leaves less room than the margin. Not decidable here: even {MOST_STUDIES} seeds would "
        f"mostly miss the margin.{loss} SHA-256 of the texts: {hash_hypotheses(recorded)}."
    )


def describe_judgements(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the verdicts as plain data, for results.json."""
    return [describe_claim(claim) for claim in judge_comparison(comparison)]


def describe_claim(judged: JudgedClaim) -> dict[str, Any]:
    """Return a verdict as plain data."""
    recorded = asdict(judged.recorded) if judged.recorded else {"text": judged.hypothesis.text}
    return {
        **recorded,
        "verdict": judged.verdict,
        "reason": judged.reason,
        "difference": judged.estimate and asdict(judged.estimate),
        "drop": judged.drop and asdict(judged.drop),
        "p_value": judged.p_value,
        "seeds": judged.studies,
        "smallest_difference": judged.smallest,
        "room": judged.room and asdict(judged.room),
    }
