"""The recipes of the runs, folded; lines that not all of several have are marked."""

from __future__ import annotations

from zoo.diagnostics.document.folded import folded
from zoo.diagnostics.drawing.markup import Markup, tag
from zoo.diagnostics.report import Report


def recipes(report: Report) -> Markup | None:
    texts = {run.name: run.recipe.splitlines() for run in report.runs if run.recipe}
    shared = set.intersection(*map(set, texts.values())) if texts else set()
    details = (folded(name, lines, shared) for name, lines in texts.items())
    return tag("div", *details, class_="recipes") if texts else None
