"""Tables that answer: does the model use position at all?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zoo.diagnostics.report import SAME, Control, Report, Run
from zoo.reporting import numbers


@dataclass(frozen=True)
class ControlCell:
    """A metric under one control: its text, its change, and its share of the largest number."""

    text: str
    change: str = ""
    share: float | None = None


@dataclass(frozen=True)
class ControlTable:
    """One metric: a row for each control, a cell for each run."""

    metric: str
    caption: str
    runs: tuple[str, ...]
    rows: dict[str, list[ControlCell]]


def build_control_tables(report: Report) -> list[ControlTable]:
    """Return a table for each metric that the controls measured."""
    runs = [run for run in report.runs if run.controls]
    controls = [control for run in runs for control in run.controls]
    metrics = dict.fromkeys(name for control in controls for name in control.metrics)
    return [_build_table(metric, runs) for metric in metrics]


def _build_table(metric: str, runs: Sequence[Run]) -> ControlTable:
    controls = [control for run in runs for control in run.controls]
    values = [abs(one.metrics[metric]) for one in controls if metric in one.metrics]
    largest = max((value for value in values if math.isfinite(value)), default=0.0)
    names = dict.fromkeys(control.name for control in controls)
    rows = {name: [_build_cell(run, name, metric, largest) for run in runs] for name in names}
    texts = [_describe(run, metric, len(runs) > 1) for run in runs]
    caption = " ".join(filter(None, texts)) or "There is no other number to compare with."
    return ControlTable(metric, caption, tuple(run.name for run in runs), rows)


def _build_cell(run: Run, name: str, metric: str, largest: float) -> ControlCell:
    control = next((control for control in run.controls if control.name == name), None)
    if control is None:
        return ControlCell(numbers.NOTHING)
    if metric not in control.metrics:
        return ControlCell(f"refused: {control.refused}" if control.refused else numbers.NOTHING)

    number, first = control.metrics[metric], run.controls[0]
    share = number / largest if math.isfinite(number) and largest > 0 else 0.0
    change = "" if control is first else _format_change(number, first, metric)
    return ControlCell(numbers.format_number(number), change, min(max(share, 0.0), 1.0))


def _format_change(number: float, first: Control, metric: str) -> str:
    change = number - first.metrics.get(metric, math.nan)
    if not math.isfinite(change):
        return ""
    if abs(change) < SAME:
        return "\u00b10" if change == 0 else "\u22480"
    text = numbers.format_number(change, 2)
    if abs(change) < 1e-3:
        text = numbers.format_fixed(change, 4)
    return f"+{text}" if change > 0 else text


def _describe(run: Run, metric: str, several: bool) -> str:
    """Say what happened, with its numbers; how much is much is for the reader to judge."""
    first, *others = run.controls
    measured = [control for control in others if metric in control.metrics]
    if metric not in first.metrics or not measured:
        return ""

    before = first.metrics[metric]
    start = f"{run.name}: " if several else ""
    same = f"{start}{numbers.format_number(before)} whatever the positions"
    if all(control.metrics[metric] == before for control in measured):
        return f"{same}."
    most = max(measured, key=lambda control: abs(control.metrics[metric] - before))
    if abs(most.metrics[metric] - before) < SAME:
        return f"{same}, up to differences below {SAME:.5f}."
    own, other = numbers.format_pair(before, most.metrics[metric])
    return (
        f"{start}{own} with positions as they are, {other} with positions {most.name}: the "
        "largest change."
    )
