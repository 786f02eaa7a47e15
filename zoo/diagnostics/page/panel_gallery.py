"""Charts of the panels of runs: lines of several runs share a chart if their units agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

from zoo.reporting.panel import Curves, Line, LineChart, Panel
from zoo.reporting.render import Drawing, draw_for_page

LINES_PER_RUN, MAX_LINES = 2, 8  # of each of several runs, and of all, in one chart


@dataclass(frozen=True)
class TitledDrawing:
    """A drawing with the title of its panel."""

    title: str
    drawing: Drawing


@dataclass(frozen=True)
class Figure:
    """Charts above the sentence that holds for all of them."""

    caption: str
    panels: list[TitledDrawing]
    columns: int | None


def build_figures(runs: Mapping[str, Sequence[Panel]]) -> list[Figure]:
    """Return the figures of {run: panels}; neighbours that share a sentence share a figure."""
    if len(runs) == 1:
        (panels,), columns = runs.values(), None
    else:
        matched = [_merge(title, found) for title, found in _match(runs)]
        panels, columns = list(chain.from_iterable(matched)), len(runs)
    return [
        Figure(caption, [TitledDrawing(one.title, draw_for_page(one)) for one in group], columns)
        for caption, group in groupby(panels, lambda panel: panel.full_caption)
    ]


def _match(runs: Mapping[str, Sequence[Panel]]) -> Iterator[tuple[str, dict[str, Panel]]]:
    """Yield the panels of one title, {run: panel}; of several in one run, first with first."""
    found: dict[tuple[str, int], dict[str, Panel]] = {}
    for run, panels in runs.items():
        seen: list[str] = []
        for panel in panels:
            found.setdefault((panel.title, seen.count(panel.title)), {})[run] = panel
            seen.append(panel.title)
    yield from ((title, panels) for (title, _), panels in found.items())


def _merge(title: str, panels: Mapping[str, Panel]) -> list[Panel]:
    """Return one chart with the lines of all runs if they are few, else a chart for each run."""
    first = next(iter(panels.values()))
    if lines := _merge_lines(panels):
        x, y = first.x, first.y
        return [LineChart(title=title, x=x, y=y, caption=first.full_caption, lines=tuple(lines))]
    return [replace(panel, title=f"{title} \u2014 {run}") for run, panel in panels.items()]


def _merge_lines(panels: Mapping[str, Panel]) -> list[Line]:
    """Return the lines of curves whose axes agree, each named by its run; none if too many."""
    curves = {run: panel for run, panel in panels.items() if isinstance(panel, Curves)}
    if len(curves) < len(panels) or len({(panel.x, panel.y) for panel in curves.values()}) > 1:
        return []
    lines = [
        Line(run if len(panel.lines) == 1 else f"{run}, {label}", panel.x_values, line)
        for run, panel in curves.items()
        for label, line in panel.lines.items()
    ]
    few = all(len(panel.lines) <= LINES_PER_RUN for panel in curves.values())
    return lines if few and len(lines) <= MAX_LINES else []
