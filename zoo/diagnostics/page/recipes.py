"""The recipes of the runs, folded; lines that not all of several have are marked."""

from __future__ import annotations

from zoo.diagnostics.drawing.markup import Markup, tag, together
from zoo.diagnostics.report.contents import Report


def recipes(report: Report) -> Markup | None:
    texts = {run.name: run.recipe.splitlines() for run in report.runs if run.recipe}
    shared = set.intersection(*map(set, texts.values())) if texts else set()
    folded = (_folded(name, lines, shared) for name, lines in texts.items())
    return tag("div", *folded, class_="recipes") if texts else None


def _folded(name: str, lines: list[str], shared: set[str]) -> Markup:
    text = together(line + "\n" if line in shared else tag("mark", line + "\n") for line in lines)
    own = sum(line not in shared for line in lines)
    note = f", those that not all runs have are marked: {own}" if own else ""
    count = "one line" if len(lines) == 1 else f"{len(lines)} lines"
    return tag("details", tag("summary", f"{name}: {count}{note}"), tag("pre", tag("code", text)))
