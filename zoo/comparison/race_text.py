"""The decisions of the looks of a race, as text."""

from __future__ import annotations

from zoo.comparison.results import Comparison, StoppedVariant
from zoo.comparison.statistics import LEVEL
from zoo.reporting.numbers import format_number, format_p_value
from zoo.reporting.sections import ReportSection, SectionTable
from zoo.suggestions import join_words

DIGITS = 3


def build_race_section(comparison: Comparison) -> ReportSection | None:
    """Return the looks of a race; None if it is none."""
    race = comparison.race
    if race is None:
        return None
    rows = []
    for look in race.looks:
        stopped = [variant.variant for variant in race.stopped if variant.look == look.studies]
        rows.append([f"{look.studies}", look.best, ", ".join(stopped), ", ".join(look.running)])
    heads = ["studies", "best mean", "stopped", "trained further"]
    return ReportSection(
        key="racing",
        title="Racing",
        table=SectionTable(heads=heads, rows=rows, left=heads[1:]) if rows else None,
        sentences=[explain_race(comparison)],
        items=[describe_stopped(variant) for variant in race.stopped],
    )


def explain_race(comparison: Comparison) -> str:
    """Explain what the looks of a race do; empty if it is none."""
    race = comparison.race
    if race is None:
        return ""
    over = " Nothing is left to decide." if race.is_over else ""
    looks = comparison.look_levels
    shares = [f"{format_number(100 * (1 - level), 2)} %" for level in looks.values()]
    spent = join_words(shares, most=len(looks))
    return (
        f"Looks after {join_words([*map(str, looks)], most=len(looks))} studies, by "
        f"{race.measure.replace('/', ' ')}: they have {spent} of false "
        f"alarms{_add_growth(comparison)}, for all variants together. What a look finds worse "
        "than the best, or smaller than was claimed of it, is not trained further and stands "
        f"below what was.{over}"
    )


def _add_growth(comparison: Comparison) -> str:
    """Explain what continuations add to the false alarms of a comparison; empty without one."""
    if not comparison.earlier:
        return ""
    total = sum((1 - LEVEL) / 2**number for number in range(len(comparison.planned)))
    lengths = join_words([*map(str, comparison.planned)])
    share = format_number(100 * total, 3)
    return f", {share} % together as {lengths} were planned one after another"


def describe_stopped(one: StoppedVariant) -> str:
    """Describe which variant was stopped, after which look, why, and with which p-value."""
    return f"`{one.variant}` {explain_stopped(one)}"


def explain_stopped(one: StoppedVariant) -> str:
    """Explain after which look a variant was stopped, why, and with which p-value."""
    lead = f"stopped after {one.look} studies: "
    if one.claim:
        interval = _format_interval(one.difference, one.low, one.high)
        why = f"smaller than claimed ({one.claim}), better than `{one.other}` by {interval}"
    else:
        interval = _format_interval(-one.difference, -one.high, -one.low)
        why = f"worse than `{one.other}` by {interval}"
    return f"{lead}{why}{_append_p_value(one.p_value)}"


def name_drop(one: StoppedVariant) -> str:
    """Return the verdict on a variant that a look found worse, for a cell of a table."""
    return f"worse, stopped after {one.look} studies{_append_p_value(one.p_value)}"


def _format_interval(mean: float, low: float, high: float) -> str:
    shown, *ends = (format_number(value, DIGITS) for value in (mean, low, high))
    return f"{shown} ({ends[0]} to {ends[1]})"


def _append_p_value(p_value: float | None) -> str:
    return "" if p_value is None else f", {format_p_value(p_value)}"
