"""Tables of measures by layer and head, and of metrics with changed positions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from zoo.diagnosis.position_use import SAME
from zoo.diagnosis.report import MEASURED, Control, DiagnosedRun, Measure, PairedChange, Report
from zoo.reporting import numbers
from zoo.reporting.panel import Scale
from zoo.reporting.style import LETTERS, LEVELS

# Above these numbers of heads, numbers fit only into wide tables, or into none.
MANY_HEADS, CROWD = 8, 16
LEAST_END = 1e-3  # smallest number for the strongest colour, so that rounding is not coloured
ZERO = 1e-5  # smaller numbers are 0 up to rounding


@dataclass(frozen=True)
class HeadCell:
    """A number as short text, as full text for the pointer, and the CSS classes of its colour."""

    text: str
    value: str
    classes: str


@dataclass(frozen=True)
class HeadTable:
    """The table of one measure of one run, with a row of cells for each layer."""

    run: str
    size: str
    rows: list[tuple[int, list[HeadCell]]]
    layer_types: tuple[str, ...] = ()

    @property
    def groups(self) -> list[tuple[str, list[tuple[int, list[HeadCell]]]]]:
        """The rows of each type of layers, with its name; one nameless group if all are alike."""
        if not self.layer_types:
            return [("", self.rows)]
        found: dict[str, list[tuple[int, list[HeadCell]]]] = {}
        for layer, cells in self.rows:
            found.setdefault(self.layer_types[layer], []).append((layer, cells))
        return [*found.items()]


@dataclass(frozen=True)
class MeasureFigure:
    """The tables of one measure of all runs that have it, on one colour scale."""

    title: str
    caption: str
    unit: str
    scale: tuple[str, str, str, str]
    tables: list[HeadTable]


def build_measure_figures(report: Report) -> list[MeasureFigure]:
    """Return a figure for each measure and unit, with a table for each run with this measure."""
    # Runs on text and on images have different units, which do not share a scale.
    found: dict[tuple[str, str], dict[str, Measure]] = {}
    for run in report.runs:
        for measure in run.measures:
            found.setdefault((measure.name, measure.unit), {})[run.name] = measure
    layers = {run.name: _number_layers(run) for run in report.runs}
    types = {run.name: run.layer_types for run in report.runs}
    return [build_figure(measures, layers, types) for measures in found.values()]


def build_figure(
    measures: Mapping[str, Measure],
    layers: Mapping[str, Sequence[int]],
    types: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> MeasureFigure:
    """Return the figure of one measure of runs.

    Args:
        measures: The measure of each run.
        layers: The indices of the rows of each run.
        types: The types of all layers of each run, if they differ.
    """
    first = next(iter(measures.values()))
    scale, ramp = choose_scale([measure.values for measure in measures.values()])
    tables = [
        replace(
            _build_table(measure, layers[run], run if len(measures) > 1 else "", scale, ramp),
            layer_types=types.get(run, ()),
        )
        for run, measure in measures.items()
    ]
    ends = (numbers.format_number(scale.low, 3), numbers.format_number(scale.high, 3))
    caption = f"{first.caption or f'{first.title} of each head.'}{_describe_even(measures)}"
    caption += _describe_intervals(measures, layers)
    return MeasureFigure(first.title, caption, first.unit, (*ends, first.unit, ramp), tables)


def choose_scale(values: Sequence[Tensor]) -> tuple[Scale, str]:
    """Choose the range of the colours and their ramp.

    The range is symmetric around 0 for numbers of both signs. Otherwise it starts at 0, unless the
    numbers are far from 0.
    """
    joined = torch.cat([_round(one).flatten() for one in values])
    joined = joined[joined.isfinite()]
    if not joined.numel():
        return Scale(0.0, 1.0), "weights"

    # A diverging ramp for both signs; otherwise a sequential one.
    low, high = float(joined.min()), float(joined.max())
    if low < 0 < high:
        largest = max(-low, high, LEAST_END)
        return Scale(-largest, largest), "signed"
    if low >= 0 and (low < 0.5 * high or low == high):
        low, high = 0.0, max(high, LEAST_END)
    covered = Scale(low, high).cover()
    # a scale of shares that is widened does not pass 1
    return (replace(covered, high=1.0) if high <= 1 < covered.high else covered), "weights"


def _number_layers(run: DiagnosedRun) -> Sequence[int]:
    if run.attended is not None:
        return run.attended.layers
    return range(max((len(measure.values) for measure in run.measures), default=0))


def _build_table(
    measure: Measure, layers: Sequence[int], run: str, scale: Scale, ramp: str
) -> HeadTable:
    heads = measure.values.shape[1]
    size = "crowd" if heads > CROWD else "many" if heads > MANY_HEADS else ""
    values, intervals = _round(measure.values).tolist(), _format_intervals(measure)
    rows = [
        (
            layer,
            [
                _build_cell(number, scale, ramp, bool(size), interval)
                for number, interval in zip(row, texts, strict=True)
            ],
        )
        for layer, row, texts in zip(layers, values, intervals, strict=True)
    ]
    return HeadTable(run, size, rows)


def _format_intervals(measure: Measure) -> list[list[str]]:
    """Return the interval of each head of each layer as text, empty where there is none."""
    if measure.low is None or measure.high is None:
        return [[""] * measure.values.shape[1] for _ in measure.values]
    pairs = torch.stack([measure.low, measure.high], dim=-1).tolist()
    return [[_format_interval(low, high) for low, high in row] for row in pairs]


def _format_interval(low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f" ({numbers.format_number(low, 3)} to {numbers.format_number(high, 3)})"


def _build_cell(
    number: float, scale: Scale, ramp: str, tight: bool, interval: str = ""
) -> HeadCell:
    if number != number:
        return HeadCell(numbers.NOTHING, numbers.NOTHING, "nothing")
    level = round((LEVELS - 1) * min(max(scale(number), 0.0), 1.0))
    text = numbers.format_short(number)
    if tight and abs(number) < 1:
        text = text.replace("0.", ".", 1)
    exact = f"{numbers.format_number(number, 3)}{interval}"
    return HeadCell(text, exact, f"{LETTERS[ramp]}{level}")


def _round(values: Tensor) -> Tensor:
    values = values.double()
    return values.where(~(values.abs() < ZERO), 0.0)


def _describe_even(measures: Mapping[str, Measure]) -> str:
    """Return a sentence with the value of evenly spread attention in each run."""
    found = {run: f"{one.even:.2f}" for run, one in measures.items() if one.even is not None}
    if not found:
        return ""
    if len(found) == len(measures) and len(set(found.values())) == 1:
        return f" Evenly spread attention: {found.popitem()[1]}."
    texts = ", ".join(f"{number} in {run}" for run, number in found.items())
    return f" Evenly spread attention: {texts}."


def _describe_intervals(
    measures: Mapping[str, Measure], layers: Mapping[str, Sequence[int]]
) -> str:
    """Return sentences with the mean over heads of each layer and its interval, and the samples."""
    texts = []
    for run, measure in measures.items():
        if measure.layers is None:
            continue
        means = ", ".join(
            f"{layer}: {numbers.format_number(mean, 3)}{_format_interval(low, high)}"
            for layer, (mean, low, high) in zip(layers[run], measure.layers.tolist(), strict=True)
        )
        start = f"{run}: mean" if len(measures) > 1 else "Mean"
        texts.append(
            f" {start} over heads by layer, with 95 % intervals over {measure.samples:,} samples: "
            f"{means}."
        )
        if measure.samples < MEASURED:
            texts.append(f" With fewer than {MEASURED} samples, all that there are, it is rough.")
    return "".join(texts)


@dataclass(frozen=True)
class ControlCell:
    """A metric under one control: its text, its change, and its fraction of the largest number."""

    text: str
    change: str = ""
    share: float | None = None


@dataclass(frozen=True)
class ControlTable:
    """The table of one metric, with a row for each control and a cell for each run."""

    metric: str
    caption: str
    runs: tuple[str, ...]
    rows: dict[str, list[ControlCell]]


def build_control_tables(report: Report) -> list[ControlTable]:
    """Return a table for each metric that was measured with changed positions."""
    runs = [run for run in report.runs if run.controls]
    controls = [control for run in runs for control in run.controls]
    metrics = dict.fromkeys(name for control in controls for name in control.metrics)
    return [_build_control_table(metric, runs) for metric in metrics]


def _build_control_table(metric: str, runs: Sequence[DiagnosedRun]) -> ControlTable:
    controls = [control for run in runs for control in run.controls]
    values = [control.metrics[metric] for control in controls if metric in control.metrics]
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    texts = dict(zip(values, numbers.format_alike(values), strict=True))
    names = dict.fromkeys(control.name for control in controls)
    rows = {
        name: [_build_control_cell(run, name, metric, largest, texts) for run in runs]
        for name in names
    }
    sentences = [_describe(run, metric, len(runs) > 1) for run in runs]
    caption = " ".join(filter(None, sentences)) or "There is no number to compare with."
    title = numbers.name_metric(metric, arrow=True)
    return ControlTable(title, caption, tuple(run.name for run in runs), rows)


def _build_control_cell(
    run: DiagnosedRun, name: str, metric: str, largest: float, texts: Mapping[float, str]
) -> ControlCell:
    control = next((control for control in run.controls if control.name == name), None)
    if control is None:
        return ControlCell(numbers.NOTHING)
    if metric not in control.metrics:
        return ControlCell(f"refused: {control.refused}" if control.refused else numbers.NOTHING)

    number, first = control.metrics[metric], run.controls[0]
    # The length of the bar of a cell.
    share = number / largest if math.isfinite(number) and largest > 0 else 0.0
    change = "" if control is first else _format_change(number, first, metric)
    if control.change is not None and control.change.metric == metric:
        change = _format_paired(control.change)
    return ControlCell(texts[number], change, min(max(share, 0.0), 1.0))


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


def _format_paired(change: PairedChange) -> str:
    """Return a change with its interval."""
    text = numbers.format_fixed(change.mean, 4, sign=True)
    if not math.isfinite(change.low):
        return text
    low, high = (numbers.format_fixed(end, 4, sign=True) for end in (change.low, change.high))
    return f"{text} ({low} to {high})"


def _describe(run: DiagnosedRun, metric: str, several: bool) -> str:
    """Return the verdict for the metric that it rests on, and for others that it is elsewhere."""
    start = f"{run.name}: " if several else ""
    first, *others = run.controls
    judges = {control.change.metric for control in others if control.change is not None}
    if metric in judges:
        return f"{start}Use of positions: {run.position_use.text}."
    measured = [control for control in others if metric in control.metrics]
    if metric not in first.metrics or not measured:
        return ""
    before = first.metrics[metric]
    if all(control.metrics[metric] == before for control in measured):
        return f"{start}{numbers.format_number(before)} for all positions."
    if not judges:
        return f"{start}Changes without intervals: they may be noise."
    # one metric judges, so that none is chosen after its result
    names = ", ".join(map(numbers.name_metric, judges))
    return f"{start}Changes without intervals: {names} tells them from noise."
