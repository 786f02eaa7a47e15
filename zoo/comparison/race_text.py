"""The decisions of the looks of a race, as text."""

from __future__ import annotations

from zoo.comparison.results import Comparison, StoppedVariant
from zoo.reporting.numbers import format_number, format_p_value
from zoo.reporting.sections import ReportSection, TextTable

DIGITS = 3


def build_race_section(comparison: Comparison) -> ReportSection | None:
    """Return the looks of a race; None if it is none."""
    race = comparison.race
    if race is None:
        return None
    rows = []
    for one in race.looks:
        stopped = [own.variant for own in race.stopped if own.look == one.studies]
        rows.append([f"{one.studies}", one.best, ", ".join(stopped), ", ".join(one.running)])
    heads = ["studies", "best mean", "stopped", "trained further"]
    return ReportSection(
        key="racing",
        title="Racing",
        table=TextTable(heads=heads, rows=rows, left=heads[1:]) if rows else None,
        sentences=[explain_race(comparison)],
        items=[describe_stopped(one) for one in race.stopped],
    )


def explain_race(comparison: Comparison) -> str:
    """Explain what the looks of a race do; empty if it is none."""
    race = comparison.race
    if race is None:
        return ""
    over = " Nothing is left to decide." if race.is_over else ""
    return (
        f"Looks after 3, 5, 8, 12 and 18 studies, by {race.measure.replace('/', ' ')}: each has a "
        f"fifth of the 5 % of false alarms, so that intervals of differences are {race.level:.0%} "
        "intervals and all verdicts of all looks hold together with 95 %. What a look finds worse "
        "than the best, or smaller than was claimed of it, is not trained further and stands "
        f"below what was.{over}"
    )


def describe_stopped(one: StoppedVariant) -> str:
    """Describe which variant was stopped, after which look, why, and with which p-value."""
    return f"`{one.variant}` {explain_stopped(one)}"


def explain_stopped(one: StoppedVariant) -> str:
    """Explain after which look a variant was stopped, why, and with which p-value."""
    lead = f"stopped after {one.look} studies: "
    if one.claim:
        found = _format_interval(one.difference, one.low, one.high)
        why = f"smaller than claimed ({one.claim}), better than `{one.other}` by {found}"
    else:
        found = _format_interval(-one.difference, -one.high, -one.low)
        why = f"worse than `{one.other}` by {found}"
    return f"{lead}{why}{_append_p_value(one.p_value)}"


def name_drop(one: StoppedVariant) -> str:
    """Return the verdict on a variant that a look found worse, for a cell of a table."""
    return f"worse, stopped after {one.look} studies{_append_p_value(one.p_value)}"


def _format_interval(mean: float, low: float, high: float) -> str:
    shown, *ends = (format_number(value, DIGITS) for value in (mean, low, high))
    return f"{shown} ({ends[0]} to {ends[1]})"


def _append_p_value(p_value: float | None) -> str:
    return "" if p_value is None else f", {format_p_value(p_value)}"
