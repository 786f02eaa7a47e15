"""The sections of the page, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from zoo.diagnostics.document import section
from zoo.diagnostics.document.section import Section
from zoo.diagnostics.drawing.figures import figure, titled
from zoo.diagnostics.drawing.markup import Markup, tag
from zoo.diagnostics.page import heat, opening, viewer
from zoo.diagnostics.page.controls import controls
from zoo.diagnostics.page.gallery import gallery
from zoo.diagnostics.page.recipes import recipes
from zoo.diagnostics.report import Measure, Report, Run
from zoo.reporting.spec import Panel

Body = Callable[[Report], Markup | None]


def _panels(pick: Callable[[Run], Sequence[Panel]]) -> Body:
    return lambda report: gallery({run.name: pick(run) for run in report.runs})


def measures(report: Report) -> Markup | None:
    """A figure for each measure and unit, with a table for each run that has it."""
    found: dict[tuple[str, str], dict[str, Measure]] = {}
    for run in report.runs:
        for measure in run.measures:
            found.setdefault((measure.name, measure.unit), {})[run.name] = measure
    layers = {run.name: _layers(run) for run in report.runs}
    figures = [measured(of, layers) for of in found.values()]
    return tag("div", *figures, class_="figures") if figures else None


def _layers(run: Run) -> Sequence[int]:
    """Numbers of the layers that were measured."""
    if run.attended is not None:
        return run.attended.layers
    return range(max((len(measure.values) for measure in run.measures), default=0))


def measured(runs: Mapping[str, Measure], layers: Mapping[str, Sequence[int]]) -> Markup:
    """One measure of runs, {run: measure}; `layers` are the numbers of the rows."""
    first = next(iter(runs.values()))
    told = f"{first.says or f'{first.title} of each head.'}{_even(runs)}"
    return figure(told, titled(first.title, heat.tables(runs, layers)))


def _even(runs: Mapping[str, Measure]) -> str:
    """What attention that is spread evenly has in each run, once where all have the same."""
    found = {name: f"{one.even:.2f}" for name, one in runs.items() if one.even is not None}
    if not found:
        return ""
    if len(found) == len(runs) and len(set(found.values())) == 1:
        return f" Spread evenly: {found.popitem()[1]}."
    return f" Spread evenly: {', '.join(f'{number} in {name}' for name, number in found.items())}."


SECTIONS = (
    Section(
        "controls",
        "Does the model use position at all?",
        "The same test, with the places of the tokens changed and everything else as it was. The less that changes a "
        "number, the less the model makes of places.",
        controls,
    ),
    Section(
        "looks",
        "Where heads look",
        "The weights with which one token, the query, gathers from the others.",
        viewer.section,
    ),
    Section(
        "measures",
        "Measures by layer and head",
        Markup(
            "Rows are layers, the first on top; columns are heads. "
            + tag(
                "span",
                "Hover a cell, or go to it with the arrow keys, for its number.",
                class_="screen",
            )
        ),
        measures,
    ),
    Section(
        "profiles",
        "Weight against offset",
        "How much heads look at what lies how far away, whatever stands there.",
        _panels(lambda run: run.profiles),
    ),
    Section(
        "encoding",
        "The encoding",
        "What it has learned, and what it does to the scores.",
        _panels(lambda run: run.encodings),
    ),
    Section("training", "Training", "As it was logged.", _panels(lambda run: run.training)),
    Section(
        "extrapolation",
        "Beyond what it was trained on",
        "The same model at other sizes.",
        _panels(lambda run: run.extrapolation),
    ),
    Section("recipe", "Recipe", "Fitting it again repeats the run.", recipes),
)


def drawn(report: Report) -> tuple[Markup, Markup]:
    """The list of contents, and the sections under the opening."""
    return section.drawn(report, opening.opening(report), SECTIONS)
