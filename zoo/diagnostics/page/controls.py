"""Does the model use position at all? What becomes of its metrics when the places of tokens are changed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zoo.diagnostics.drawing import digits
from zoo.diagnostics.drawing.bars import bar
from zoo.diagnostics.drawing.figures import figure, titled
from zoo.diagnostics.drawing.markup import Markup, breaking, tag
from zoo.diagnostics.report import SAME, Control, Report, Run


def controls(report: Report) -> Markup | None:
    """A table for each metric: a row for each control, a column for each run."""
    runs = [run for run in report.runs if run.controls]
    metrics = dict.fromkeys(
        name for run in runs for control in run.controls for name in control.metrics
    )
    figures = [_figure(metric, runs) for metric in metrics]
    return tag("div", *figures, class_="figures") if figures else None


def _figure(metric: str, runs: Sequence[Run]) -> Markup:
    names = dict.fromkeys(control.name for run in runs for control in run.controls)
    most = max((abs(number) for run in runs for number in _numbers(run, metric)), default=0.0)
    top = tag(
        "tr",
        tag("th", "places", scope="col"),
        *(tag("th", breaking(run.name), scope="col") for run in runs),
    )
    rows = (
        tag("tr", tag("th", name, scope="row"), *(_cell(run, name, metric, most) for run in runs))
        for name in names
    )
    head = tag("thead", top) if len(runs) > 1 else None
    table = tag("table", head, tag("tbody", *rows), class_="controls")
    return figure(
        _says(metric, runs), titled(metric, tag("div", table, class_="wide")), wide=len(runs) > 1
    )


def _numbers(run: Run, metric: str) -> list[float]:
    found = (control.metrics[metric] for control in run.controls if metric in control.metrics)
    return [number for number in found if math.isfinite(number)]


def _cell(run: Run, name: str, metric: str, most: float) -> Markup:
    control = _named(run, name)
    if control is None:
        return tag("td", digits.NOTHING)
    if metric not in control.metrics:
        return tag(
            "td",
            f"refused: {control.refused}" if control.refused else digits.NOTHING,
            class_="refused",
        )
    number = control.metrics[metric]
    first = run.controls[0]
    change = None if control is first else _change(number, first.metrics.get(metric, float("nan")))
    words = tag(
        "span", digits.value(number), tag("small", change) if change else None, class_="number"
    )
    return tag("td", tag("div", bar(number, most), words, class_="control"))


def _named(run: Run, name: str) -> Control | None:
    return next((control for control in run.controls if control.name == name), None)


def _change(number: float, before: float) -> str | None:
    by = number - before
    if not math.isfinite(by):
        return None
    if abs(by) < SAME:
        return "\u00b10" if by == 0 else "\u22480"
    words = f"{by:.4f}".replace("-", digits.MINUS) if abs(by) < 1e-3 else digits.value(by, 2)
    return f"+{words}" if by > 0 else words


def _says(metric: str, runs: Sequence[Run]) -> str:
    """What happened, with its numbers; how much is much is for the reader to judge."""
    told = [words for run in runs if (words := _told(run, metric, len(runs) > 1))]
    return " ".join(told) or "There is no other number to compare with."


def _told(run: Run, metric: str, several: bool) -> str:
    first = run.controls[0]
    others = [
        (control, control.metrics[metric])
        for control in run.controls[1:]
        if metric in control.metrics
    ]
    if metric not in first.metrics or not others:
        return ""
    before = first.metrics[metric]
    of = f"{run.name}: " if several else ""
    if all(number == before for _, number in others):
        return f"{of}{digits.value(before)} wherever tokens are placed."
    control, number = max(others, key=lambda pair: abs(pair[1] - before))
    if abs(number - before) < SAME:
        return (
            f"{of}{digits.value(before)} wherever tokens are placed, but for less than {SAME:.5f}."
        )
    first_words, most_words = digits.apart(before, number)
    return f"{of}{first_words} with places as they are, {most_words} with them {control.name}, which changes most."
