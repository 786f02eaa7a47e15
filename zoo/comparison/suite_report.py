"""Write what a suite has come to: a page, Markdown, a table for a paper, numbers and a figure."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

from zoo.comparison.outputs import PAGE, RESULTS
from zoo.comparison.overall import HEADS, list_standing_rows
from zoo.comparison.plan import IGNORE, IGNORED
from zoo.comparison.suite_results import (
    MARKS,
    NOT_APPLICABLE,
    PartResult,
    SuiteComparison,
    build_suite_table,
    draw_scores,
    list_notes,
    list_scores,
    list_value_rows,
    list_warnings,
)
from zoo.reporting.numbers import as_json, pluralize
from zoo.reporting.tables import (
    BOLD,
    NOT_BOLD,
    disarm_tags,
    find_established,
    format_markdown,
    format_tables,
)
from zoo.utils import escape_strings, write_file

TABLE = "suite.md"
FIGURE = "suite"
PART_HEADS = ("part", "task", "cells", "from records", "warnings")


def explain_suite(found: SuiteComparison) -> list[str]:
    """Return how the table is read, and what it cannot show."""
    suite = found.plan.file.suite
    seeds = pluralize(suite.seeds, "seed")
    if suite.studies is not None:
        trials = pluralize(suite.budget or 0, "trial")
        seeds = f"{suite.studies} studies that tune each encoding with {trials}"
    # the marks of Markdown and HTML; LaTeX has its own, explained in its caption
    worse, unsure = MARKS.values()
    table = build_suite_table(found)
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
    return [f"{'. '.join(parts)}.", *suite.limits]


def list_part_rows(found: SuiteComparison) -> list[list[str]]:
    """Return a row for each part: what it is, and where its cells come from."""
    return [
        [
            one.request.part.title,
            one.request.part.about or one.request.part.recipe,
            _count_cells(one),
            str(one.recorded),
            " ".join(list_warnings(one)) or "none",
        ]
        for one in found.parts
    ]


def _count_cells(one: PartResult) -> str:
    cells = one.comparison.cells if one.comparison else []
    return f"{sum(cell.state == 'done' for cell in cells)} of {len(cells)}"


def format_suite(found: SuiteComparison) -> str:
    """Format the results of a suite as Markdown."""
    return "\n\n".join(part for part in _list_blocks(found) if part)


def _list_blocks(found: SuiteComparison) -> Iterator[str]:
    suite = found.plan.file.suite
    heads, rows = list_value_rows(found)
    yield f"# {suite.title}"
    yield suite.about
    yield format_markdown(heads, escape_strings(rows), heads[:2])
    yield "\n".join(explain_suite(found))
    yield "\n".join(f"- {note}" for note in escape_strings([*list_notes(found)]))
    yield "## Over all parts"
    if found.ranking is None:
        yield f"No ranking: {found.unranked}"
    else:
        rows = escape_strings(list_standing_rows(found.ranking))
        yield format_markdown(HEADS, rows, ("variant", "verdict"))
        yield "\n".join(f"- left out: {one}" for one in escape_strings(found.ranking.left_out))
    yield "## Parts"
    yield format_markdown(PART_HEADS, escape_strings(list_part_rows(found)), PART_HEADS)
    yield f"Repeat it with: {found.plan.command}" if found.plan.command else ""


def render_suite(found: SuiteComparison, picture: bytes | None) -> str:
    """Return the page as HTML: it opens from a file, and no request goes out from it."""
    from zoo.reporting.html import Section, render_page

    heads, rows = list_value_rows(found)
    standings = [] if found.ranking is None else list_standing_rows(found.ranking)
    return render_page(
        "comparison/page/suite.html",
        styles=("comparison/page/comparison.css",),
        scripts=(),
        data={},
        kind="suite",
        title=found.plan.file.suite.title,
        about=found.plan.file.suite.about,
        picture="" if picture is None else base64.b64encode(picture).decode(),
        reading=explain_suite(found),
        notes=[*list_notes(found)],
        unranked=found.unranked,
        left_out=[] if found.ranking is None else found.ranking.left_out,
        command=found.plan.command,
        links={
            one.request.part.title: f"{one.request.name}/{PAGE}"
            for one in found.parts
            if one.comparison is not None
        },
        sections=[
            Section("results", "Results", "All encodings in all parts.", (heads, rows)),
            Section(
                "overall", "Over all parts", "Mean scores, the best first.", (HEADS, standings)
            ),
            Section(
                "parts",
                "Parts",
                "Each has a page of its own, with intervals, curves and costs.",
                (PART_HEADS, list_part_rows(found)),
            ),
        ],
    )


def write_suite(found: SuiteComparison, *, intervals: bool = False) -> None:
    """Write page, Markdown, tables for papers, numbers and the figure into the output folder."""
    folder = found.plan.folder
    texts = {
        RESULTS: as_json(found.to_dict()) + "\n",
        TABLE: disarm_tags(format_suite(found)) + "\n",
        IGNORE: IGNORED,
        **format_tables(build_suite_table(found), intervals=intervals),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_file(io.BytesIO(text.encode()), folder / name)
    # after the numbers: the renderer may end the process where memory is short
    pictures = _render_scores(found)
    page = render_suite(found, pictures.get(f"{FIGURE}.png"))
    for name, content in {PAGE: page.encode(), **pictures}.items():
        write_file(io.BytesIO(content), folder / name)


def _render_scores(found: SuiteComparison) -> dict[str, bytes]:
    """Return the figure of the scores in each format, by file name; none without scores."""
    # altair takes its time to import
    from zoo.reporting import charts

    if not any(True for _ in list_scores(found)):
        return {}
    rendered = charts.render_formats(draw_scores(found))
    return {f"{FIGURE}{suffix}": content for suffix, content in rendered.items()}
