"""The page of `zoo diagnose` as a single HTML file, and its numbers as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from zoo.diagnosis.page import class_maps, viewer_data
from zoo.diagnosis.page.head_tables import build_control_tables, build_measure_figures
from zoo.diagnosis.report import DiagnosedRun, Report
from zoo.reporting import numbers
from zoo.reporting.html import Section, render_page
from zoo.reporting.panel import Bars, Curves, Line, LineChart, Panel
from zoo.reporting.render import Figure, draw_figures
from zoo.suggestions import join_words
from zoo.utils import name_file

FOLDER = "diagnosis/page"
# The title of each section, and a sentence on how to read it.
SECTIONS = {
    "controls": (
        "Does the model use position?",
        "The same test with changed positions of the tokens. The less a number changes, the less "
        "the model relies on positions.",
    ),
    "predictions": (
        "What the model predicts",
        "Test images, their masks, and the classes that the model predicts for their pixels. White "
        "pixels have no class.",
    ),
    "classes": ("By class", "How much of each class the model finds in the test images."),
    "looks": ("Where heads look", "The attention weights of one token, the query, on all others."),
    "measures": (
        "Measures by layer and head",
        "Rows are layers, the first on top; columns are heads.",
    ),
    "profiles": (
        "Weight against offset",
        "The mean attention of heads at each offset, regardless of content.",
    ),
    "encoding": ("The encoding", "What it has learned, and its effect on the scores."),
    "training": ("Training", "The logged metrics."),
    "extrapolation": ("Beyond the training size", "The same model at other sizes."),
    "recipe": ("Recipe", "Training with it repeats the run."),
}
LONG = 60  # characters of a fact that has its own line
ROW = 200  # characters of all cells of a row of a table
LINES_PER_RUN, MAX_LINES = 2, 8  # largest numbers of lines per run, and in one chart


def write(report: Report, path: Path) -> None:
    """Write the page to `path`, and its numbers to the file with the suffix .json next to it."""
    # numbers first: the renderer of figures may end the process where memory is short
    _write(viewer_data.to_json(report), path.with_suffix(".json"))
    _write(render(report), path)


def _write(text: str, path: Path) -> None:
    """Write a file; an existing one is replaced only after the new one is complete."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with name_file(path):
            fresh.write_text(text, encoding="utf-8", newline="\n")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def render(report: Report) -> str:
    """Return the page as HTML."""
    return render_page(
        f"{FOLDER}/diagnosis.html",
        styles=(f"{FOLDER}/diagnosis.css",),
        scripts=tuple(
            f"{FOLDER}/{name}.js" for name in ("head_tables", "attention_viewer", "diagnosis")
        ),
        data=viewer_data.collect(report),
        kind="report",
        title=join_names(report),
        report=report,
        sections=build_sections(report),
        runs_table=build_runs_table(report.runs) if len(report.runs) > 1 else None,
        long=LONG,
    )


def join_names(report: Report) -> str:
    """Join the names of all runs to one title."""
    return join_words(run.name for run in report.runs)


def build_sections(report: Report) -> list[Section]:
    """Return the sections in order, without empty ones."""

    def gallery(pick: Callable[[DiagnosedRun], Sequence[Panel]]) -> list[Figure]:
        return build_figures({run.name: pick(run) for run in report.runs})

    contents: dict[str, Any] = {
        "controls": build_control_tables(report),
        "predictions": class_maps.build_class_maps(report.runs),
        "classes": gallery(draw_classes),
        "looks": viewer_data.describe(report),
        "measures": build_measure_figures(report),
        "profiles": gallery(lambda run: run.profiles),
        "encoding": gallery(lambda run: run.encodings),
        "training": gallery(lambda run: run.training),
        "extrapolation": gallery(lambda run: run.extrapolation),
        "recipe": find_recipes(report),
    }
    return [Section(key, *SECTIONS[key], found) for key, found in contents.items() if found]


def draw_classes(run: DiagnosedRun) -> list[Panel]:
    """Return the chart of the scores by class; none for tasks other than segmentation."""
    if not run.class_ious:
        return []
    caption = "Intersection over union of each class: 0 if none of its pixels is found, at most 1."
    return [Bars(title="IoU", x="class", y="IoU", caption=caption, values=run.class_ious)]


def find_recipes(report: Report) -> dict[str, Any] | None:
    """Return the lines of each run's recipe, and those that all runs share."""
    texts = {run.name: run.recipe.splitlines() for run in report.runs if run.recipe}
    if not texts:
        return None
    return {"texts": texts, "shared": set.intersection(*map(set, texts.values()))}


@dataclass(frozen=True)
class RunsTable:
    """A table of the facts of several runs, with a column for each.

    Args:
        metrics: Texts of each metric, one for each run.
        facts: Texts of each short fact, one for each run.
        statements: Long facts below the table, {fact: {run: text}}. A fact that all runs share
            has an empty name of the run.
    """

    metrics: dict[str, list[str]]
    facts: dict[str, list[str]]
    statements: dict[str, dict[str, str]]


def build_runs_table(runs: Sequence[DiagnosedRun]) -> RunsTable:
    """Collect the metrics and facts of runs by name."""
    metrics = [
        {
            numbers.name_metric(name, arrow=True): numbers.format_number(number)
            for name, number in run.metrics.items()
        }
        for run in runs
    ]
    # A fact that is long in any run moves below the table.
    keys = dict.fromkeys(key for run in runs for key in run.facts)
    limit = ROW // len(runs)
    long = [key for key in keys if any(len(run.facts.get(key, "")) > limit for run in runs)]
    facts = [{key: text for key, text in run.facts.items() if key not in long} for run in runs]
    checkpoints = {"checkpoint": [run.checkpoint for run in runs]}
    statements = {key: _merge_statements(key, runs) for key in long}
    return RunsTable(_fill_rows(metrics), _fill_rows(facts) | checkpoints, statements)


def _fill_rows(columns: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    keys = dict.fromkeys(key for column in columns for key in column)
    return {key: [column.get(key, numbers.NOTHING) for column in columns] for key in keys}


def _merge_statements(key: str, runs: Sequence[DiagnosedRun]) -> dict[str, str]:
    texts = {run.name: run.facts[key] for run in runs if key in run.facts}
    if len(texts) == len(runs) and len(set(texts.values())) == 1:
        return {"": runs[0].facts[key]}
    return texts


def build_figures(runs: Mapping[str, Sequence[Panel]]) -> list[Figure]:
    """Return the figures of {run: panels}. Consecutive panels with one caption share a figure."""
    # Panels of several runs are matched by title: in one chart, or one per run in columns.
    if len(runs) == 1:
        (panels,), columns = runs.values(), None
    else:
        matched = [_merge(title, found) for title, found in _match(runs)]
        panels, columns = list(chain.from_iterable(matched)), len(runs)
    return draw_figures(panels, columns)


def _match(runs: Mapping[str, Sequence[Panel]]) -> Iterator[tuple[str, dict[str, Panel]]]:
    """Yield each title with its panels, {run: panel}; repeated titles are matched in order."""
    found: dict[tuple[str, int], dict[str, Panel]] = {}
    for run, panels in runs.items():
        seen: list[str] = []
        for panel in panels:
            found.setdefault((panel.title, seen.count(panel.title)), {})[run] = panel
            seen.append(panel.title)
    yield from ((title, panels) for (title, _), panels in found.items())


def _merge(title: str, panels: Mapping[str, Panel]) -> list[Panel]:
    """Return one chart with the lines of all runs if they are few, or a chart for each run."""
    first = next(iter(panels.values()))
    if lines := _merge_lines(panels):
        x, y = first.x, first.y
        return [LineChart(title=title, x=x, y=y, caption=first.full_caption, lines=tuple(lines))]
    return [replace(panel, title=f"{title} \u2014 {run}") for run, panel in panels.items()]


def _merge_lines(panels: Mapping[str, Panel]) -> list[Line]:
    """Return the lines of curves with the same axes, named by run; none if there are too many."""
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
