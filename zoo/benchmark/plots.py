"""A benchmark result as a figure: bars of ratios for one length, curves over several lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import altair as alt
import torch

from zoo.benchmark.result import (
    MB,
    BenchResult,
    BenchRow,
    compute_quartiles,
    list_lengths,
    merge_references,
    select_rows,
)
from zoo.reporting import charts
from zoo.reporting.panel import Line, LineChart, Scale, fit_scale
from zoo.reporting.style import LIGHT, Chart, Style, clean, label_expression, start_chart
from zoo.run.machine import format_machine

MIN_RATIO = 4.0  # of the ends of a vertical axis over lengths, so that a few percent look small
STYLE = Style(width=330, height=240)
TITLES: Mapping[str, str] = {
    "train": "step",
    "memory": "peak memory",
    "decode": "decoding after a prompt",
    "context": "a token",
    "cache": "KV cache",
    "layer": "a layer",
}


def draw_result(result: BenchResult) -> Chart:
    """Draw a chart for each measure that has values."""
    rows = merge_references(result.rows)
    panels = []
    for measure in TITLES:
        if measured := select_rows(rows, measure):
            several = len(list_lengths(measured, measure)) > 1
            panels.append(
                _draw_curves(result, measured) if several else _draw_bars(result, measured)
            )
    chart = alt.concat(*panels or [_draw_bars(result, [])], columns=2, spacing=30)
    return chart.resolve_scale(color="independent").properties(title=_build_title(result))


def _build_title(result: BenchResult) -> alt.Title:
    shape = result.shape
    partial = "PARTIAL  " if result.partial else ""
    sizes = f"width {shape['dim']}, {result.describe_depth()}, batch {shape['batch']}"
    versions = f"torch {result.machine['torch']}, zoo {result.zoo_version}"
    where = f"{format_machine(result.machine)}; {versions}"
    return alt.Title(
        clean(f"{partial}{shape['name']}: {sizes}, {shape['precision']}"),
        subtitle=clean(where),
        anchor="start",
        fontSize=13,
        offset=14,
    )


def _draw_bars(result: BenchResult, rows: Sequence[BenchRow]) -> Chart:
    """Draw ratios to the reference, the least on top, with their quartiles."""
    shown = [row for row in rows if row.ratios]
    title, x = "nothing to compare", f"relative to {result.reference}"
    if shown:
        unit = "pixels" if result.shape["kind"] == "image" else "tokens"
        title = f"{TITLES[shown[0].measure]}, {shown[0].length:,} {unit}"
        x = f"{TITLES[shown[0].measure]}, {x}"
    data: list[dict[str, Any]] = []
    for number, row in enumerate(shown):
        middle = median(row.ratios)
        low, high = compute_quartiles(row.ratios) or (middle, middle)
        bar = {"row": str(number), "ratio": middle, "low": low, "high": high, "zero": 0.0}
        data.append(bar | {"text": f"{middle:.2f}", "colour": _choose_colour(row, result)})

    most = max((entry["high"] for entry in data), default=1.0)
    scale = alt.Scale(domain=[0, 1.12 * max(most, 1.0)], nice=False)
    labels = label_expression([row.name for row in shown])
    axis = alt.Axis(labelExpr=labels, ticks=False, domain=False, labelLimit=240)
    y = alt.Y("row:N", sort=None, title=None, axis=axis)
    base = start_chart(data).encode(y=y)
    bars = base.mark_bar(size=13).encode(
        x=alt.X("ratio:Q", title=clean(x), scale=scale, axis=alt.Axis(grid=False)),
        x2="zero",
        color=alt.Color("colour:N", scale=None),
    )
    quartiles = base.mark_rule(color=LIGHT.ink).encode(x="low:Q", x2="high")
    texts = base.mark_text(align="left", dx=5, fontSize=9).encode(x="high:Q", text="text:N")
    baseline = start_chart([{"one": 1.0}])
    line = baseline.mark_rule(color=LIGHT.faint, strokeDash=[4, 3]).encode(x="one:Q")
    heading = alt.Title(clean(title), anchor="start", frame="group", fontSize=12)
    height = 18 * max(len(shown), 3)
    return alt.layer(bars, line, quartiles, texts).properties(
        width=STYLE.width, height=height, title=heading
    )


def _choose_colour(row: BenchRow, result: BenchResult) -> str:
    if row.library:
        return LIGHT.series[1]
    return LIGHT.quiet if row.name == result.reference else LIGHT.series[0]


def _draw_curves(result: BenchResult, rows: Sequence[BenchRow]) -> Chart:
    """Draw time or memory over lengths; of many models some have a colour, the others are grey."""
    is_memory = rows[0].unit == "bytes"
    factor = 1 / MB if is_memory else 1e3
    points: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda row: row.length):
        points.setdefault(row.name, []).append((row.length, median(row.values) * factor))

    coloured = _choose_models(result, rows)
    grey = [name for name in points if name not in coloured]
    x_scale, y_scale = _fit_scales(points)
    title = f"{TITLES[rows[0].measure]}, over lengths"
    panel = LineChart(
        title=title if len(points) > 1 else f"{title}: {next(iter(points))}",
        x="pixels along a side" if result.shape["kind"] == "image" else "tokens",
        y=("MB" if is_memory else "ms") + (f"; {len(grey)} others in grey" if grey else ""),
        lines=tuple(_build_line(name, points[name]) for name in coloured if name in points),
        x_scale=x_scale,
        y_scale=y_scale,
    )
    layers = [charts.draw_panel(panel, STYLE)]
    if grey:
        lines = [_build_line(name, points[name], colour=0, shades=1) for name in grey]
        pale = Style(
            palette=LIGHT.with_series(LIGHT.rule),
            width=STYLE.width,
            height=STYLE.height,
            has_legend=False,
        )
        behind = LineChart(
            title=panel.title,
            x=panel.x,
            y=panel.y,
            lines=tuple(lines),
            x_scale=x_scale,
            y_scale=y_scale,
        )
        layers.insert(0, charts.draw_panel(behind, pale))
    return alt.layer(*layers).resolve_scale(color="independent")


def _build_line(
    name: str,
    points: Sequence[tuple[float, float]],
    colour: int | None = None,
    shades: int | None = None,
) -> Line:
    x, y = zip(*points, strict=True)
    return Line(name, torch.tensor(x), torch.tensor(y), colour=colour, shades=shades)


def _fit_scales(points: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[Scale, Scale]:
    pairs = [point for line in points.values() for point in line]
    x = sorted({x for x, _ in pairs})
    fitted = fit_scale([torch.tensor([y for _, y in pairs])], log=True).widen()
    margin = max(1.0, (MIN_RATIO * fitted.low / fitted.high) ** 0.5)
    y_scale = Scale(fitted.low / margin, fitted.high * margin, log=True)
    return Scale(x[0], x[-1], log=True, ticks=tuple(x)), y_scale


def _choose_models(result: BenchResult, rows: Sequence[BenchRow]) -> list[str]:
    """Choose the models with a colour: all, or the reference and some from quick to slow."""
    longest = max(row.length for row in rows)
    order = [row.name for row in select_rows(rows, rows[0].measure, longest)]
    candidates = [name for name in order if name != result.reference]
    room = len(LIGHT.series) - 1
    if len(candidates) > room:
        share = (len(candidates) - 1) / (room - 1)
        candidates = [candidates[round(number * share)] for number in range(room)]
    return [result.reference, *candidates]
