"""The head of the page: which runs, which encodings, and the first facts and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zoo.diagnostics.drawing import digits
from zoo.diagnostics.drawing.markup import Markup, breaking, tag
from zoo.diagnostics.report import Report, Run

LONG = 60  # letters that take a line of their own
ROW = 200  # letters of a row of a table, of all its cells


def title(report: Report) -> str:
    *first, last = (run.name for run in report.runs)
    return f"{', '.join(first)} and {last}" if first else last


def _heading(report: Report) -> Markup:
    """The title, each name in one line if that holds it, its comma with it."""
    *first, last = (breaking(run.name) for run in report.runs)
    names = [
        tag("span", name, "," if place < len(first) else None, class_="name")
        for place, name in enumerate(first, 1)
    ]
    listed = [part for name in names for part in (name, " ")]
    return tag("h1", *listed, "and " if first else None, tag("span", last, class_="name"))


def opening(report: Report) -> Markup:
    """One run as a card of facts, several as a table with a column each."""
    over = tag(
        "p",
        f"zoo {report.version} \u00b7 attention diagnostics \u00b7 {report.made}",
        class_="over",
    )
    body = _card(report.runs[0]) if len(report.runs) == 1 else _table(report.runs)
    return tag("header", over, _heading(report), body, id="top")


def names(run: Run) -> Markup:
    """The encodings of a run, in their order."""
    return tag(
        "span",
        *(tag("span", name, class_="encoding") for name in run.encoding or ("none",)),
        class_="encodings",
    )


def _card(run: Run) -> Markup:
    metrics = (_pair(name, digits.value(number)) for name, number in run.metrics.items())
    facts = (
        _pair(name, words) for name, words in {**run.facts, "checkpoint": run.checkpoint}.items()
    )
    return tag(
        "div",
        tag("p", names(run)),
        tag("dl", *metrics, class_="metrics"),
        tag("dl", *facts, class_="facts"),
    )


def _pair(name: str, words: str) -> Markup:
    return tag(
        "div",
        tag("dt", breaking(name)),
        tag("dd", breaking(words)),
        class_="long" if len(words) > LONG else None,
    )


def _table(runs: Sequence[Run]) -> Markup:
    top = tag("tr", tag("td"), *(tag("th", breaking(run.name), scope="col") for run in runs))
    rows = [_row("encoding", [names(run) for run in runs])]
    rows += _rows(
        [{name: digits.value(number) for name, number in run.metrics.items()} for run in runs],
        "number",
    )
    long = dict.fromkeys(
        key for run in runs for key, words in run.facts.items() if len(words) > ROW // len(runs)
    )
    rows += _rows(
        [{key: words for key, words in run.facts.items() if key not in long} for run in runs]
    )
    rows.append(_row("checkpoint", [run.checkpoint for run in runs]))
    table = tag(
        "div", tag("table", tag("thead", top), tag("tbody", *rows), class_="runs"), class_="wide"
    )
    return tag(
        "div",
        table,
        tag("dl", *(_sentences(key, runs) for key in long), class_="told-of") if long else None,
    )


def _sentences(key: str, runs: Sequence[Run]) -> Markup:
    """What is too long for the cells of a table, a paragraph for each run, or one where all are told the same."""
    told = {run.name: run.facts[key] for run in runs if key in run.facts}
    same = len(told) == len(runs) and len(set(told.values())) == 1
    lines = ({"": told.popitem()[1]} if same else told).items()
    words = (
        tag("p", tag("b", breaking(name), ": ") if name else None, breaking(line))
        for name, line in lines
    )
    return tag("div", tag("dt", breaking(key)), tag("dd", *words))


def _rows(columns: Sequence[Mapping[str, str]], look: str | None = None) -> list[Markup]:
    """A row for each key of any column."""
    keys = dict.fromkeys(key for column in columns for key in column)
    return [
        _row(key, [column.get(key, digits.NOTHING) for column in columns], look) for key in keys
    ]


def _row(name: str, cells: Sequence[str], look: str | None = None) -> Markup:
    return tag(
        "tr",
        tag("th", breaking(name), scope="row"),
        *(tag("td", breaking(cell), class_=look) for cell in cells),
    )
