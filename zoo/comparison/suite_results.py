"""The results of a suite: all encodings in all parts, as one table and one ranking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zoo.comparison.number_text import count_decimals
from zoo.comparison.ranking import average_baselines, rank_variants
from zoo.comparison.result_table import INTERVAL, build_value, describe_marks
from zoo.comparison.suite_run import ComparedPart, SuiteComparison
from zoo.comparison.text import describe_unfinished, describe_winning_baseline
from zoo.options.plain import to_plain
from zoo.reporting.numbers import finite, format_fixed
from zoo.reporting.tables import ResultColumn, ResultRow, ResultTable, ResultValue, find_established
from zoo.suggestions import join_words

if TYPE_CHECKING:
    from zoo.reporting.style import Chart

NOT_APPLICABLE = "n/a"
BASELINE = "best baseline"
"""The row of what needs no model: a bigram, the commonest answer, the majority class."""
LEAST_SCORE = -0.5
"""Where the axis of scores ends at the latest."""
MARKS = {"worse": "\u2020", "unsure": "\u2021"}
Text = tuple[str, ...]


def describe_suite(suite: SuiteComparison) -> dict[str, Any]:
    """Return a suite and the values of its table as JSON can hold them."""
    table = build_suite_table(suite)
    described: dict[str, Any] = finite(
        {
            "suite": to_plain(suite.file.suite),
            "encodings": list(suite.encodings),
            "command": suite.command,
            "parts": {
                part.name: {
                    "folder": part.name,
                    "variants": dict(part.variants),
                    "not_applicable": dict(part.refused),
                    "recorded_cells": part.recorded,
                    "warnings": list(list_warnings(part)),
                }
                for part in suite.parts
            },
            "columns": [to_plain(column) for column in table.columns],
            "rows": {row.name: [to_plain(value) for value in row.values] for row in table.rows},
            "ranking": None if suite.ranking is None else to_plain(suite.ranking),
            "unranked": suite.unranked,
        }
    )
    return described


def build_suite_table(suite: SuiteComparison) -> ResultTable:
    """Return a row for each encoding, and a column for each condition of each part."""
    columns: list[ResultColumn] = []
    values: dict[str, list[ResultValue]] = {label: [] for label in suite.encodings}
    baselines: list[ResultValue] = []
    for part in suite.parts:
        for column, by_label, baseline in _list_columns(part, suite.encodings):
            columns.append(column)
            baselines.append(baseline)
            for label, value in by_label.items():
                values[label].append(value)
    rows = [ResultRow(name=label, values=tuple(row)) for label, row in values.items()]
    # below a rule, and not ranked among the encodings
    if any(value.mean is not None for value in baselines):
        rows.append(ResultRow(name=BASELINE, values=tuple(baselines), block=BASELINE))
    return ResultTable(
        head="encoding",
        columns=tuple(columns),
        rows=tuple(rows),
        caption=" ".join([f"{suite.file.suite.title}.", *list_notes(suite)]),
        label=f"suite {suite.file.name}",
        is_wide=True,
        marks=describe_marks("at the level of each comparison"),
        interval=INTERVAL,
        command=suite.command,
    )


def _list_columns(
    part: ComparedPart, encodings: Sequence[str]
) -> Iterator[tuple[ResultColumn, dict[str, ResultValue], ResultValue]]:
    """Yield each column of a part, {encoding: value}, and the value of the best baseline."""
    group = part.declared.title
    refused = ResultValue(None, note=NOT_APPLICABLE)
    if part.comparison is None:
        by_label = {
            label: refused if label in part.refused else ResultValue(None) for label in encodings
        }
        yield ResultColumn(title="-", group=group), by_label, ResultValue(None)
        return
    comparison = part.comparison
    # the hardest to beat
    best = min if comparison.better == "low" else max
    for condition in part.conditions:
        baselines = average_baselines(comparison, condition)
        standings = {
            standing.variant.name: standing for standing in rank_variants(comparison, condition)
        }
        by_label = {
            label: build_value(comparison, standings[part.variants[label]])
            if label in part.variants
            else refused
            for label in encodings
        }
        column = ResultColumn(
            title=condition.describe(),
            group=f"{group}, {part.measure}",
            decimals=count_decimals(comparison),
            better=comparison.better,
        )
        yield (column, by_label, ResultValue(best(baselines.values()) if baselines else None))


def list_warnings(part: ComparedPart) -> Iterator[str]:
    """Yield what keeps a reader from believing the results of a part."""
    if part.comparison is None:
        is_empty = not part.variants
        yield "no encoding is applicable" if is_empty else "not begun yet"
        return
    if warning := describe_winning_baseline(part.comparison):
        yield warning
    if unfinished := describe_unfinished(part.comparison):
        yield unfinished


def list_notes(suite: SuiteComparison) -> Iterator[str]:
    """Yield warnings, stand-ins and encodings that are not applicable, a sentence each."""
    for part in suite.parts:
        title = part.declared.title
        for warning in list_warnings(part):
            yield f"{title}: {warning.rstrip('.')}."
        for label, variant in part.variants.items():
            if variant != label:
                yield f"{title}: {variant} stands for {label}."
        for label, reason in part.refused.items():
            yield f"{title}: {label} is not applicable ({reason})."


def list_value_rows(suite: SuiteComparison) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows for people: a row for each condition, a column for each encoding."""
    table = build_suite_table(suite)
    heads = ["part", "condition", *(row.name for row in table.rows)]
    established = find_established(table)
    rows = []
    for number, column in enumerate(table.columns):
        cells = [
            _format_cell(row.values[number], column, is_bold=bold[number])
            for row, bold in zip(table.rows, established, strict=True)
        ]
        rows.append([column.group, column.title, *cells])
    return heads, rows


def _format_cell(value: ResultValue, column: ResultColumn, *, is_bold: bool) -> str:
    if value.mean is None:
        return value.note or "-"
    shown = format_fixed(value.mean, column.decimals) + MARKS.get(value.mark, "")
    return f"**{shown}**" if is_bold else shown


def draw_scores(suite: SuiteComparison) -> Chart:
    """Draw the score of each encoding in each part.

    A score far below 0 would squeeze all others: it is an arrow at the edge of the plot.
    """
    import altair as alt

    from zoo.reporting.cuts import ARROWS
    from zoo.reporting.style import LIGHT, start_chart

    parts = [*list_scores(suite)]
    scores = [score for part in parts for score in part.scores.values()]
    low, high = max(min([0.0, *scores]), LEAST_SCORE), max([1.0, *scores])
    margin = 0.04 * (high - low)
    domain = alt.Scale(domain=[low - margin, high + margin], nice=False, zero=False)
    rows = [
        {"part": part.title, "encoding": label, "score": max(score, low), "cut": score < low}
        for part in parts
        for label, score in part.scores.items()
    ]
    labels = list(suite.encodings)
    colours = [LIGHT.colour(number, len(labels)) for number in range(len(labels))]
    colour = alt.Color(
        "encoding:N", sort=None, title=None, scale=alt.Scale(domain=labels, range=colours)
    )
    zeros = join_words(dict.fromkeys(part.zero for part in parts), "or")
    cut = [row for row in rows if row["cut"]]
    note = f"; arrows: below {low:g}" if cut else ""
    x = alt.X("score:Q", title=f"score: 0 is {zeros}, 1 the best encoding{note}", scale=domain)
    y = alt.Y("part:N", sort=None, title=None)
    shown = start_chart(finite([row for row in rows if not row["cut"]]))
    dots = shown.mark_point(filled=True, size=70, opacity=0.9).encode(
        x=x,
        y=y,
        color=colour,
        shape=alt.Shape("encoding:N", sort=None, title=None, scale=alt.Scale(domain=labels)),
    )
    layers = [dots]
    if cut:
        arrows = start_chart(finite(cut)).mark_text(text=ARROWS["left"], fontSize=11)
        layers.append(arrows.encode(x=x, y=y, color=colour))
    return alt.layer(*layers).properties(width=420, height=30 * len(parts))


@dataclass(frozen=True, kw_only=True)
class PartScores:
    """The scores of a part at the training size.

    Attributes:
        title: The title of the part.
        zero: What has the score 0.
        scores: {encoding: score}; the best encoding has the score 1.
    """

    title: str
    zero: str
    scores: Mapping[str, float]


def list_scores(suite: SuiteComparison) -> Iterator[PartScores]:
    """Yield the scores of each part in which an encoding beats all baselines.

    The best baseline has the score 0; without baselines, the last encoding has.
    """
    for part in suite.parts:
        if part.comparison is None:
            continue
        standings = rank_variants(part.comparison, part.comparison.trained)
        means = {
            standing.variant.name: standing.mean.mean for standing in standings if standing.mean
        }
        if not means:
            continue
        is_low = part.comparison.better == "low"
        choose = min if is_low else max
        baselines = average_baselines(part.comparison).values()
        zero = choose(baselines) if baselines else (max if is_low else min)(means.values())
        # all are equal to the zero: their scores are 0
        span = (choose(means.values()) - zero) or 1.0
        if (span > 0) == is_low:
            # no encoding beats the baseline, so the best one has no score of 1
            continue
        yield PartScores(
            title=part.declared.title,
            zero="the best baseline" if baselines else "the last encoding",
            scores={
                label: (means[variant] - zero) / span
                for label, variant in part.variants.items()
                if variant in means
            },
        )
