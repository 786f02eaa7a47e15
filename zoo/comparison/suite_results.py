"""The results of a suite: all encodings in all parts, as one table and one ranking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.comparison.compare import Outcome
from zoo.comparison.overall import OverallRanking, rank_tasks
from zoo.comparison.plan import CELLS
from zoo.comparison.ranking import average_baselines, rank_variants
from zoo.comparison.record_file import read_cells
from zoo.comparison.result_table import INTERVAL, build_value, describe_marks
from zoo.comparison.results import Comparison
from zoo.comparison.suite_run import PartRequest, SuiteOutcome, SuitePlan
from zoo.comparison.text import count_decimals, describe_unfinished, describe_winning_baseline
from zoo.errors import DataError
from zoo.options.plain import to_plain
from zoo.reporting.numbers import finite, format_fixed
from zoo.reporting.tables import ResultColumn, ResultRow, ResultTable, ResultValue, find_established
from zoo.run.conditions import Condition
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


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """A part of a suite, as far as it has come.

    Attributes:
        request: What was compared.
        folder: Its output folder.
        comparison: Its results; None if no encoding is applicable, or it was not begun.
        recorded: Cells that were taken from records.
    """

    request: PartRequest
    folder: Path
    comparison: Comparison | None
    recorded: int = 0

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that the table of the suite has."""
        if self.comparison is None:
            return ()
        chosen = self.request.part.columns
        found = self.comparison.conditions
        return tuple(one for one in found if one.name in chosen) if chosen else found

    @property
    def measure(self) -> str:
        """The metric without its prefix: accuracy."""
        return self.comparison.measure.removeprefix("test/") if self.comparison else ""


@dataclass(frozen=True, kw_only=True)
class SuiteComparison:
    """A suite as far as it has come.

    Attributes:
        plan: The parts and the encodings.
        parts: The results of each part.
        ranking: The encodings that all parts have, ranked over them; None if there is none.
        unranked: Why there is none.
    """

    plan: SuitePlan
    parts: tuple[PartResult, ...]
    ranking: OverallRanking | None
    unranked: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the suite and the values of its table as JSON can hold them."""
        table = build_suite_table(self)
        found: dict[str, Any] = finite(
            {
                "suite": to_plain(self.plan.file.suite),
                "encodings": list(self.plan.encodings),
                "command": self.plan.command,
                "parts": {
                    one.request.name: {
                        "folder": one.request.name,
                        "variants": dict(one.request.variants),
                        "not_applicable": dict(one.request.refused),
                        "recorded_cells": one.recorded,
                        "warnings": list(list_warnings(one)),
                    }
                    for one in self.parts
                },
                "columns": [to_plain(one) for one in table.columns],
                "rows": {one.name: [to_plain(value) for value in one.values] for one in table.rows},
                "ranking": None if self.ranking is None else to_plain(self.ranking),
                "unranked": self.unranked,
            }
        )
        return found


def collect_suite(outcome: SuiteOutcome) -> SuiteComparison:
    """Return the results of all parts, and the ranking over them."""
    plan = outcome.plan
    parts = tuple(_collect_part(plan, one, outcome.outcomes.get(one.name)) for one in plan.parts)
    named = {
        one.request.part.title: _rename_variants(one.comparison, one.request.variants)
        for one in parts
        if one.comparison is not None
    }
    # too few seeds, tasks or common encodings are no error of a suite: the page says so
    try:
        ranking, unranked = rank_tasks(named, plan.command), ""
    except DataError as error:
        ranking, unranked = None, str(error)
    return SuiteComparison(plan=plan, parts=parts, ranking=ranking, unranked=unranked)


def _collect_part(plan: SuitePlan, request: PartRequest, outcome: Outcome | None) -> PartResult:
    folder = plan.folder / request.name
    comparison = None if outcome is None else outcome.comparison
    names = {Path(one.run_dir).name for one in comparison.cells} if comparison else set()
    # a cell that was trained here has a run directory
    recorded = [
        name
        for name in read_cells(folder)
        if name in names and not (folder / CELLS / name).exists()
    ]
    return PartResult(request=request, folder=folder, comparison=comparison, recorded=len(recorded))


def _rename_variants(comparison: Comparison, variants: Mapping[str, str]) -> Comparison:
    """Return a comparison whose variants have the names of the encodings they stand for."""
    known = {one.name: one for one in comparison.variants}
    named = [replace(known[variant], name=label) for label, variant in variants.items()]
    return replace(comparison, variants=tuple(named))


def build_suite_table(found: SuiteComparison) -> ResultTable:
    """Return a row for each encoding, and a column for each condition of each part."""
    columns: list[ResultColumn] = []
    values: dict[str, list[ResultValue]] = {label: [] for label in found.plan.encodings}
    baselines: list[ResultValue] = []
    for one in found.parts:
        for column, own, baseline in _list_columns(one, found.plan.encodings):
            columns.append(column)
            baselines.append(baseline)
            for label, value in own.items():
                values[label].append(value)
    rows = [ResultRow(name=label, values=tuple(own)) for label, own in values.items()]
    # below a rule, and not ranked among the encodings
    if any(one.mean is not None for one in baselines):
        rows.append(ResultRow(name=BASELINE, values=tuple(baselines), block=BASELINE))
    return ResultTable(
        head="encoding",
        columns=tuple(columns),
        rows=tuple(rows),
        caption=" ".join([f"{found.plan.file.suite.title}.", *list_notes(found)]),
        label=f"suite {found.plan.file.name}",
        is_wide=True,
        marks=describe_marks("at the level of each comparison"),
        interval=INTERVAL,
        command=found.plan.command,
    )


def _list_columns(
    one: PartResult, encodings: Sequence[str]
) -> Iterator[tuple[ResultColumn, dict[str, ResultValue], ResultValue]]:
    """Yield each column of a part, {encoding: value}, and the value of the best baseline."""
    group = one.request.part.title
    refused = ResultValue(None, note=NOT_APPLICABLE)
    if one.comparison is None:
        own = {
            label: refused if label in one.request.refused else ResultValue(None)
            for label in encodings
        }
        yield ResultColumn(title="-", group=group), own, ResultValue(None)
        return
    comparison = one.comparison
    # the hardest to beat
    best = min if comparison.better == "low" else max
    for condition in one.conditions:
        baselines = average_baselines(comparison, condition)
        standings = {each.variant.name: each for each in rank_variants(comparison, condition)}
        own = {
            label: build_value(comparison, standings[one.request.variants[label]])
            if label in one.request.variants
            else refused
            for label in encodings
        }
        column = ResultColumn(
            title=condition.describe(),
            group=f"{group}, {one.measure}",
            decimals=count_decimals(comparison),
            better=comparison.better,
        )
        yield (column, own, ResultValue(best(baselines.values()) if baselines else None))


def list_warnings(one: PartResult) -> Iterator[str]:
    """Yield what keeps a reader from believing the results of a part."""
    if one.comparison is None:
        is_empty = not one.request.variants
        yield "no encoding is applicable" if is_empty else "not begun yet"
        return
    if warning := describe_winning_baseline(one.comparison):
        yield warning
    if unfinished := describe_unfinished(one.comparison):
        yield unfinished


def list_notes(found: SuiteComparison) -> Iterator[str]:
    """Yield warnings, stand-ins and encodings that are not applicable, a sentence each."""
    for one in found.parts:
        title, request = one.request.part.title, one.request
        for warning in list_warnings(one):
            yield f"{title}: {warning.rstrip('.')}."
        for label, variant in request.variants.items():
            if variant != label:
                yield f"{title}: {variant} stands for {label}."
        for label, reason in request.refused.items():
            yield f"{title}: {label} is not applicable ({reason})."


def list_value_rows(found: SuiteComparison) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows for people: a row for each condition, a column for each encoding."""
    table = build_suite_table(found)
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
    text = format_fixed(value.mean, column.decimals) + MARKS.get(value.mark, "")
    return f"**{text}**" if is_bold else text


def draw_scores(found: SuiteComparison) -> Chart:
    """Draw the score of each encoding in each part.

    A score far below 0 would squeeze all others: it is an arrow at the edge of the plot.
    """
    import altair as alt

    from zoo.reporting.cuts import ARROWS
    from zoo.reporting.style import LIGHT, start_chart

    parts = [*list_scores(found)]
    scores = [score for part in parts for score in part.scores.values()]
    low, high = max(min([0.0, *scores]), LEAST_SCORE), max([1.0, *scores])
    margin = 0.04 * (high - low)
    domain = alt.Scale(domain=[low - margin, high + margin], nice=False, zero=False)
    rows = [
        {"part": part.title, "encoding": label, "score": max(score, low), "cut": score < low}
        for part in parts
        for label, score in part.scores.items()
    ]
    labels = list(found.plan.encodings)
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


def list_scores(found: SuiteComparison) -> Iterator[PartScores]:
    """Yield the scores of each part in which an encoding beats all baselines.

    The best baseline has the score 0; without baselines, the last encoding has.
    """
    for one in found.parts:
        if one.comparison is None:
            continue
        standings = rank_variants(one.comparison, one.comparison.trained)
        means = {each.variant.name: each.mean.mean for each in standings if each.mean}
        if not means:
            continue
        is_low = one.comparison.better == "low"
        choose = min if is_low else max
        baselines = average_baselines(one.comparison).values()
        zero = choose(baselines) if baselines else (max if is_low else min)(means.values())
        # all are equal to the zero: their scores are 0
        span = (choose(means.values()) - zero) or 1.0
        if (span > 0) == is_low:
            # no encoding beats the baseline, so the best one has no score of 1
            continue
        yield PartScores(
            title=one.request.part.title,
            zero="the best baseline" if baselines else "the last encoding",
            scores={
                label: (means[variant] - zero) / span
                for label, variant in one.request.variants.items()
                if variant in means
            },
        )
