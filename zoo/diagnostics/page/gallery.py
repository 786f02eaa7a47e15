"""Panels of several runs: lines of one title in one drawing where their units agree, else in columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from zoo.diagnostics.drawing import curves
from zoo.diagnostics.drawing.curves import Line
from zoo.diagnostics.drawing.figures import draw, figure, sentence, titled
from zoo.diagnostics.drawing.markup import Markup, tag
from zoo.reporting.spec import Curves, Panel

EACH, MOST = 2, 8  # lines of each of several runs, and of all, in one drawing


def gallery(runs: Mapping[str, Sequence[Panel]]) -> Markup | None:
    """Figures of the panels of runs, {run: panels}; neighbours that share a sentence share a figure."""
    groups = groupby(_panels(runs), lambda pair: pair[0])
    figures = [
        figure(says, *(panel for _, panel in group), columns=len(runs) if len(runs) > 1 else None)
        for says, group in groups
    ]
    return tag("div", *figures, class_="figures") if figures else None


def _panels(runs: Mapping[str, Sequence[Panel]]) -> Iterator[tuple[str, Markup]]:
    """(sentence, drawing under its title)"""
    for title, panels in _matched(runs):
        if len(runs) == 1:
            ((_, panel),) = panels.items()
            yield sentence(panel), titled(panel.title, draw(panel))
        elif lines := _joined(panels):
            first = next(iter(panels.values()))
            assert isinstance(first, Curves)
            yield sentence(first), titled(title, curves.plot(first, lines))
        else:
            for run, panel in panels.items():
                yield sentence(panel), titled(f"{title} \u2014 {run}", draw(panel))


def _matched(runs: Mapping[str, Sequence[Panel]]) -> Iterator[tuple[str, dict[str, Panel]]]:
    """Panels of one title, {run: panel}, in the order of their first run; of several in one run, the first with the first."""
    found: dict[tuple[str, int], dict[str, Panel]] = {}
    for run, panels in runs.items():
        seen: list[str] = []
        for panel in panels:
            found.setdefault((panel.title, seen.count(panel.title)), {})[run] = panel
            seen.append(panel.title)
    yield from ((title, panels) for (title, _), panels in found.items())


def _joined(panels: Mapping[str, Panel]) -> list[Line]:
    """Lines of curves whose axes agree, each named by its run, if they are few; else none."""
    curved = {run: panel for run, panel in panels.items() if isinstance(panel, Curves)}
    if len(curved) < len(panels) or len({(panel.x, panel.y) for panel in curved.values()}) > 1:
        return []
    lines = [
        Line(run if len(panel.lines) == 1 else f"{run}, {label}", panel.places, line)
        for run, panel in curved.items()
        for label, line in panel.lines.items()
    ]
    few = all(len(panel.lines) <= EACH for panel in curved.values()) and len(lines) <= MOST
    return lines if few else []
