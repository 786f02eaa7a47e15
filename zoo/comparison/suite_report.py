"""Write what a suite has come to: a page, Markdown, a table for a paper, numbers and a figure."""

from __future__ import annotations

from functools import partial

from zoo.comparison.outputs import PAGE, RESULTS
from zoo.comparison.overall import STYLES, build_standing_table, list_left_out
from zoo.comparison.plan import IGNORE, IGNORED
from zoo.comparison.suite_results import (
    MARKS,
    NOT_APPLICABLE,
    build_suite_table,
    describe_suite,
    draw_scores,
    list_notes,
    list_scores,
    list_value_rows,
    list_warnings,
)
from zoo.comparison.suite_run import ComparedPart, SuiteComparison
from zoo.reporting.numbers import as_json, pluralize
from zoo.reporting.sections import ReportSection, SectionedReport, SectionTable, write_report
from zoo.reporting.tables import BOLD, NOT_BOLD, find_established, format_tables

NAME = "suite"
"""The name of its Markdown and its figures, without suffixes."""
PART_HEADS = ("part", "task", "cells", "from records", "warnings")


def explain_suite(suite: SuiteComparison) -> list[str]:
    """Return how the table is read, and what it cannot show."""
    declared = suite.file.suite
    seeds = pluralize(declared.seeds, "seed")
    if declared.studies is not None:
        trials = pluralize(declared.budget or 0, "trial")
        seeds = f"{declared.studies} studies that tune each encoding with {trials}"
    # the marks of Markdown and HTML; LaTeX has its own, explained in its caption
    worse, unsure = MARKS.values()
    table = build_suite_table(suite)
    values = [value for row in table.rows for value in row.values]
    marks = {value.mark for value in values}
    parts = [f"Means over {seeds}"]
    parts.append(f"Bold: {BOLD}" if any(map(any, find_established(table))) else NOT_BOLD)
    if "worse" in marks:
        parts.append(
            f"{worse} worse than the best, by simultaneous intervals corrected for all pairs"
        )
    if "unsure" in marks:
        parts.append(f"{unsure} not judged")
    if any(value.note for value in values):
        parts.append(f"{NOT_APPLICABLE}: not applicable")
    return [f"{'. '.join(parts)}.", *map(_join_lines, declared.limits)]


def _join_lines(paragraph: str) -> str:
    """Join the lines of a string of a YAML file."""
    return " ".join(paragraph.split())


def list_part_rows(suite: SuiteComparison) -> list[list[str]]:
    """Return a row for each part: what it is, and where its cells come from."""
    return [
        [
            part.declared.title,
            part.declared.about or part.declared.recipe,
            _count_cells(part),
            str(part.recorded),
            " ".join(list_warnings(part)) or "none",
        ]
        for part in suite.parts
    ]


def _count_cells(part: ComparedPart) -> str:
    cells = part.comparison.cells if part.comparison else []
    return f"{sum(cell.state == 'done' for cell in cells)} of {len(cells)}"


def build_report(suite: SuiteComparison) -> SectionedReport:
    """Return the report of a suite."""
    heads, rows = list_value_rows(suite)
    ranking = suite.ranking
    links = {
        part.declared.title: f"{part.name}/{PAGE}"
        for part in suite.parts
        if part.comparison is not None
    }
    return SectionedReport(
        kind="suite",
        title=suite.file.suite.title,
        about=_join_lines(suite.file.suite.about),
        figure=(
            "Scores of all encodings in each part, at the training size. Parts in which no "
            "encoding beats the baseline are left out."
        ),
        command=suite.command,
        sections=[
            ReportSection(
                key="results",
                title="Results",
                lead="All encodings in all parts.",
                table=SectionTable(heads=heads, rows=rows, left=heads[:2]),
                sentences=explain_suite(suite),
                items=[*list_notes(suite)],
            ),
            ReportSection(
                key="overall",
                title="Over all parts",
                lead="Mean scores, the best first.",
                table=None if ranking is None else build_standing_table(ranking),
                sentences=[f"No ranking: {suite.unranked}"] if ranking is None else [],
                items=[] if ranking is None else list_left_out(ranking),
            ),
            ReportSection(
                key="parts",
                title="Parts",
                lead="Each has a page of its own, with intervals, curves and costs.",
                table=SectionTable(heads=PART_HEADS, rows=list_part_rows(suite), left=PART_HEADS),
                links=links,
            ),
        ],
    )


def write_suite(suite: SuiteComparison) -> None:
    """Write page, Markdown, tables for papers, numbers and the figure into the output folder."""
    write_report(
        build_report(suite),
        suite.folder,
        name=NAME,
        page=PAGE,
        texts={
            RESULTS: as_json(describe_suite(suite)) + "\n",
            IGNORE: IGNORED,
            **format_tables(build_suite_table(suite), intervals=suite.options.intervals),
        },
        draw=partial(draw_scores, suite) if any(True for _ in list_scores(suite)) else None,
        styles=STYLES,
    )
