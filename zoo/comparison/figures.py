"""Figures of a comparison, as PNG, SVG and PDF files in its folder."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import altair as alt

from zoo.comparison.curves import by_cost, by_position, by_size, explain_charts, in_training
from zoo.comparison.number_text import count_decimals
from zoo.comparison.ranking import Standing, choose_scale, rank_variants
from zoo.comparison.results import Comparison
from zoo.comparison.strips import build_strip, explain_strips
from zoo.comparison.text import capitalize, format_measure, format_question, name_extreme
from zoo.reporting import charts, numbers
from zoo.reporting.cuts import ARROWS
from zoo.reporting.panel import LineChart, Points, Scale
from zoo.reporting.style import Chart, Style, clean, label_expression, start_chart, x_axis
from zoo.run.conditions import Condition
from zoo.utils import write_file

MAX_LINES = 12  # in one chart; more have a chart each
PER_ROW = {"ranking": 4, "small": 7, "charts": 3}  # charts side by side
MAX_TITLE, MAX_NAME = 90, 40  # characters of the title of a figure, and of a name
STYLE = Style(width=330, height=220)
SMALL = Style(width=110, height=85)
PLOT_WIDTH = 220  # of the ranking under one condition
SEED_OFFSET = 7  # pixels below the mean of a row
SIGNS = {"parameters": "\u2020", "attention": "\u2021"}  # after the names of flagged variants
OTHER_SIGN = "*"
Align = Literal["left", "center", "right"]


def save_figures(comparison: Comparison, folder: Path) -> list[Path]:
    """Write all figures, each as PNG, SVG and PDF.

    Raises:
        ZooError: A file cannot be written.
    """
    paths = []
    for name, figure in draw_figures(comparison).items():
        for suffix, content in charts.render_formats(figure).items():
            paths.append(folder / f"{name}{suffix}")
            write_file(io.BytesIO(content), paths[-1])
    return paths


def draw_figures(comparison: Comparison) -> dict[str, Chart]:
    """Draw the ranking, and what there is of curves by size and position, training and costs.

    Returns:
        {name of a figure: its chart}
    """
    all_panels: dict[str, Sequence[LineChart | Points]] = {
        "sizes": by_size(comparison),
        "positions": by_position(comparison),
        "training": in_training(comparison),
        "costs": by_cost(comparison),
    }
    figures = {
        name: draw_charts(comparison, panels, explain_charts(comparison, name, panels))
        for name, panels in all_panels.items()
        if panels
    }
    return {"ranking": draw_ranking(comparison), **figures}


def draw_charts(
    comparison: Comparison, panels: Sequence[LineChart | Points], subtitle: str = ""
) -> Chart:
    """Draw all charts; each line of the last one separately if there are too many."""
    last_panel = panels[-1]
    if (
        isinstance(last_panel, LineChart)
        and len(comparison.axes) < 2
        and len(last_panel.lines) > MAX_LINES
    ):
        return draw_lines_apart(comparison, last_panel)
    drawn = [charts.draw_panel(_shorten_names(panel), STYLE) for panel in panels]
    columns = 2 if len(drawn) == 4 else PER_ROW["charts"]
    return _arrange(comparison, drawn, columns, subtitle)


def draw_lines_apart(comparison: Comparison, panel: LineChart) -> Chart:
    """Draw a small chart for each line, over all others in grey, the last and best one first."""
    x_scale, y_scale = charts.fit_scales(panel)
    rule = (panel.rule[0], "") if panel.rule else None
    bare = replace(panel, x="", y="", title="", rule=rule, x_scale=x_scale, y_scale=y_scale)
    lines = [replace(line, band=None, colour=0, shades=1) for line in panel.lines]
    grey = STYLE.palette.with_series(STYLE.palette.rule)
    behind = replace(SMALL, palette=grey, has_legend=False)
    # drawn once, as it is the same behind every line
    backdrop = charts.draw_panel(replace(bare, lines=tuple(lines), rule=None), behind)
    drawn = []
    for line in reversed(lines):
        title = shorten(line.label)
        front = charts.draw_panel(replace(bare, title=title, lines=(line,)), SMALL)
        drawn.append(alt.layer(backdrop, front).resolve_scale(color="independent"))
    subtitle = f"{panel.title}: {panel.y} against {panel.x}"
    return _arrange(comparison, drawn, PER_ROW["small"], subtitle)


def draw_ranking(comparison: Comparison) -> Chart:
    """Draw means, intervals and seeds of all variants, a chart for each condition."""
    columns = []
    for condition in comparison.conditions:
        standings = rank_variants(comparison, condition)
        columns.append((standings, choose_scale(standings)))
    drawn = [
        _draw_condition(comparison, condition, *column)
        for condition, column in zip(comparison.conditions, columns, strict=True)
    ]
    notes = [*explain_strips(columns, name_extreme(comparison))]
    marks = dict.fromkeys(kind for variant in comparison.variants for kind in variant.flag_kinds)
    signs = ", ".join(f"{kind} {SIGNS.get(kind, OTHER_SIGN)}" for kind in marks)
    notes += [f"not as in most: {signs}"] if signs else []
    return _arrange(comparison, drawn, PER_ROW["ranking"], "; ".join(notes))


def shorten(text: str, longest: int = MAX_NAME) -> str:
    """Shorten text, and leave out characters that cannot be printed."""
    short = text if len(text) <= longest else f"{text[: longest - 1]}\u2026"
    return "".join(letter for letter in short if letter.isprintable())


def _arrange(
    comparison: Comparison, drawn: Sequence[Chart], columns: int, subtitle: str = ""
) -> Chart:
    """Arrange charts in rows under the question of the comparison."""
    title = alt.Title(
        clean(shorten(format_question(comparison), MAX_TITLE)),
        subtitle=clean(shorten(subtitle, 3 * MAX_TITLE)),
        anchor="start",
        fontSize=15,
        color=STYLE.palette.ink,
        subtitleColor=STYLE.palette.quiet,
        offset=14,
    )
    grid = alt.concat(*drawn, columns=min(columns, len(drawn)), spacing=28)
    # charts of different conditions have scales of their own, as losses at other sizes have
    return grid.resolve_scale(color="independent", strokeDash="independent").properties(title=title)


def _shorten_names(panel: LineChart | Points) -> LineChart | Points:
    if isinstance(panel, Points):
        return replace(panel, groups={shorten(name): xy for name, xy in panel.groups.items()})
    lines = tuple(replace(line, label=shorten(line.label)) for line in panel.lines)
    return replace(panel, title=shorten(panel.title), lines=lines)


def _draw_condition(
    comparison: Comparison, condition: Condition, standings: Sequence[Standing], scale: Scale
) -> Chart:
    digits = count_decimals(comparison)
    rows = [_describe(standing, number, scale, digits) for number, standing in enumerate(standings)]
    arrow = "\u2192" if comparison.better == "high" else "\u2190"
    x_name = shorten(f"{format_measure(comparison)}, better {arrow}")
    labels = label_expression([shorten(_label(standing)) for standing in standings])
    y = alt.Y(
        "row:N",
        sort=None,
        title=None,
        axis=alt.Axis(labelExpr=labels, ticks=False, domain=False, labelLimit=220),
    )

    def x(field: str) -> alt.X:
        encoding = x_axis(field, x_name, scale, STYLE)
        encoding["axis"]["gridColor"] = STYLE.palette.rule
        return encoding

    colour = alt.Color("colour:N", scale=None)
    base = start_chart(rows).encode(y=y)
    interval = base.transform_filter("isValid(datum.low)")
    interval = interval.mark_rule(strokeWidth=4, opacity=0.4, strokeCap="round")
    mean = base.transform_filter("isValid(datum.mean)")
    mean = mean.mark_point(filled=True, size=60, opacity=1, strokeWidth=1.6)
    layers = [
        interval.encode(x=x("low"), x2="high", color=colour),
        mean.encode(
            x=x("mean"),
            fill=alt.Fill("fill:N", scale=None),
            stroke=alt.Stroke("colour:N", scale=None),
        ),
    ]
    seeds = [
        {"row": row["row"], "seed": value, "colour": row["colour"]}
        for row in rows
        for value in row["seeds"]
    ]
    if seeds:
        dots = start_chart(seeds).mark_circle(size=9, opacity=1, yOffset=SEED_OFFSET)
        layers.append(dots.encode(x=x("seed"), y=y, color=colour))
    layers += _draw_notes(rows, y)
    title = shorten(capitalize(condition.describe()))
    heading = alt.Title(title, anchor="start", frame="group", fontSize=12)
    return alt.layer(*layers).properties(width=PLOT_WIDTH, height=24 * len(rows), title=heading)


def _describe(standing: Standing, number: int, scale: Scale, digits: int) -> dict[str, Any]:
    """Return the row of one variant: numbers within the chart, and notes in place of others."""
    palette = STYLE.palette
    colour = palette.ink if standing.verdict in ("best", "possible") else palette.faint
    row: dict[str, Any] = {"row": str(number), "colour": colour, "fill": colour}
    row |= {"mean": None, "low": None, "high": None, "seeds": (), "notes": []}
    if standing.mean is None:
        reasons = shorten("; ".join(standing.missing_reasons))
        return row | {"notes": [("center", 0, reasons, palette.quiet)]}

    strip = build_strip(standing, scale)
    row |= {"mean": strip.mean, "seeds": strip.seeds}
    if strip.interval:
        row |= {"low": strip.interval[0], "high": strip.interval[1]}
    # open: the point of a variant that may be best is white inside
    if standing.verdict == "possible":
        row["fill"] = "#ffffff"
    left, right = ARROWS["left"], ARROWS["right"]
    value = numbers.format_fixed(standing.mean.mean, digits)
    notes = row["notes"]
    # above the part of its interval that is drawn
    height = -9 if strip.interval else 0
    if strip.mean_side < 0:
        notes.append(("left", height, f"{left} {value}", palette.quiet))
    elif strip.interval_cuts[0]:
        notes.append(("left", 0, left, colour))
    if strip.mean_side > 0:
        notes.append(("right", height, f"{value} {right}", palette.quiet))
    elif strip.interval_cuts[1]:
        notes.append(("right", 0, right, colour))
    if strip.seed_cuts[0]:
        notes.append(("left", SEED_OFFSET, left, colour))
    if strip.seed_cuts[1]:
        notes.append(("right", SEED_OFFSET, right, colour))
    return row


def _draw_notes(rows: Sequence[Mapping[str, Any]], y: alt.Y) -> list[alt.Chart]:
    """Return the layers of texts and arrows, one for each place in a row."""
    places: dict[tuple[Align, int], list[dict[str, Any]]] = {}
    for row in rows:
        for align, offset, label, colour in row["notes"]:
            note = {"row": row["row"], "note": label, "colour": colour}
            places.setdefault((align, offset), []).append(note)
    at: dict[Align, float] = {"left": 0, "center": PLOT_WIDTH / 2, "right": PLOT_WIDTH}
    return [
        start_chart(notes)
        .mark_text(fontSize=6 if offset > 0 else 9, align=align, dy=offset)
        .encode(y=y, x=alt.value(at[align]), text="note:N", color=alt.Color("colour:N", scale=None))
        for (align, offset), notes in places.items()
    ]


def _label(standing: Standing) -> str:
    signs = dict.fromkeys(SIGNS.get(kind, OTHER_SIGN) for kind in standing.variant.flag_kinds)
    return " ".join([standing.variant.name, *signs])
