"""The table of a comparison for a paper: the variants under all conditions."""

from __future__ import annotations

import csv
import io

from zoo.comparison.number_text import count_decimals
from zoo.comparison.ranking import Standing, collect_values, describe_levels, rank_variants
from zoo.comparison.results import Comparison
from zoo.comparison.statistics import FEWEST, LEVEL
from zoo.comparison.text import MAX_SEEDS, capitalize, format_measure, join_names, list_warnings
from zoo.reporting.tables import ResultColumn, ResultRow, ResultTable, ResultValue
from zoo.utils import escape_text

WORSE, UNSURE = "worse", "unsure"
INTERVAL = f"{LEVEL * 100:g} % intervals over seeds (Student's t)"


def describe_marks(levels: str) -> dict[str, str]:
    """Return {mark: its meaning} of values.

    Args:
        levels: The levels of intervals, as `describe_levels` states them.
    """
    return {
        WORSE: "worse than the best by simultaneous intervals of the differences by seed, "
        f"corrected for all pairs, {levels}",
        UNSURE: "not judged: too few seeds in common with the best, equal differences, better on "
        "those seeds, or not trained to the end",
    }


def build_result_table(comparison: Comparison) -> ResultTable:
    """Return a row for each variant, best first, and a column for each condition."""
    columns = [
        {standing.variant.name: standing for standing in rank_variants(comparison, condition)}
        for condition in comparison.conditions
    ]
    measure, decimals = format_measure(comparison), count_decimals(comparison)
    first_column = next(iter(columns), {})
    return ResultTable(
        head=" \u00d7 ".join(axis.title for axis in comparison.axes) or "variant",
        columns=tuple(
            ResultColumn(
                title=condition.describe(),
                group=measure,
                decimals=decimals,
                better=comparison.better,
            )
            for condition in comparison.conditions
        ),
        rows=tuple(
            ResultRow(
                name=name, values=tuple(build_value(comparison, column[name]) for column in columns)
            )
            for name in first_column
        ),
        caption=_write_caption(comparison),
        label=comparison.recipe,
        marks=describe_marks(describe_levels(comparison)),
        interval=INTERVAL,
        command=comparison.command,
    )


def format_values(comparison: Comparison) -> str:
    """Format what each cell measured as CSV: a row for each variant, condition and seed."""
    axes = comparison.axes if len(comparison.axes) > 1 else ()
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ["variant", *(axis.key for axis in axes), "condition", "seed", "measure", "value"]
    )
    for variant in comparison.variants:
        words = [variant.name, *(variant.values.get(axis.key, "") for axis in axes)]
        for condition in comparison.conditions:
            for seed, value in collect_values(variant, condition, comparison.measure).items():
                row = [*words, condition.describe(), str(seed), comparison.measure, f"{value:.9g}"]
                writer.writerow([escape_text(text) for text in row])
    return file.getvalue()


def build_value(comparison: Comparison, one: Standing) -> ResultValue:
    """Return the mean of a variant under a condition, with its interval and its verdict."""
    if one.mean is None:
        return ResultValue(None)
    # of one or two seeds nothing is judged, which the caption says once
    verdict = one.verdict if len(comparison.seeds) >= FEWEST else ""
    return ResultValue(
        one.mean.mean,
        one.mean.low,
        one.mean.high,
        mark=verdict if verdict in (WORSE, UNSURE) else "",
        standing="best" if verdict == "best" else "worse" if verdict == WORSE else "",
    )


def _write_caption(comparison: Comparison) -> str:
    seeds = join_names([str(seed) for seed in comparison.seeds], MAX_SEEDS)
    measure = capitalize(format_measure(comparison))
    parts = list_warnings(comparison)
    if len(comparison.seeds) >= FEWEST:
        parts.append(f"{measure} on {comparison.recipe}, means over seeds {seeds}.")
    else:
        word = "seed" if len(comparison.seeds) == 1 else "seeds"
        parts.append(
            f"{measure} on {comparison.recipe}, {word} {seeds}; fewer than three seeds cannot "
            "tell a difference from chance."
        )
    kinds: dict[str, list[str]] = {}
    for variant in comparison.variants:
        for kind in variant.flag_kinds:
            kinds.setdefault(kind, []).append(variant.name)
    flags = "; ".join(f"{kind} of {join_names(names)}" for kind, names in kinds.items())
    parts += [f"Not as in most: {flags}."] if flags else []
    return " ".join(part for part in parts if part)
