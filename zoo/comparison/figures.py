"""Figures of a comparison, as PNG, SVG and PDF files in its folder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt

from zoo.comparison.curves import by_cost, by_position, by_size, in_training
from zoo.comparison.ranking import Standing, choose_scale, rank_variants
from zoo.comparison.results import Comparison
from zoo.comparison.text import (
    capitalize,
    count_decimals,
    format_measure,
    format_question,
    name_extreme,
)
from zoo.reporting import charts, numbers
from zoo.reporting.panel import LineChart, Points, Scale
from zoo.reporting.style import Chart, Style, clean, label_expression, start_chart, x_axis
from zoo.run.conditions import Condition
from zoo.utils import write_file

MAX_LINES = 12  # in one chart; more have a chart each
PER_ROW = {"ranking": 4, "small": 7, "charts": 3}  # charts side by side
MAX_TITLE, MAX_NAME = 90, 40  # characters of the title of a figure, and of a name
STYLE = Style(width=330, height=220)
SMALL = Style(width=110, height=85)
SIGNS = {"parameters": "\u2020", "attention": "\u2021"}  # after the names of flagged variants
OTHER_SIGN = "*"


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
    found: dict[str, Sequence[LineChart | Points]] = {
        "sizes": by_size(comparison),
        "positions": by_position(comparison),
        "training": in_training(comparison),
        "costs": by_cost(comparison),
    }
    figures = {name: draw_charts(comparison, one) for name, one in found.items() if one}
    return {"ranking": draw_ranking(comparison), **figures}


def draw_charts(comparison: Comparison, panels: Sequence[LineChart | Points]) -> Chart:
    """Draw all charts; each line of the last one separately if there are too many."""
    last = panels[-1]
    if isinstance(last, LineChart) and len(comparison.axes) < 2 and len(last.lines) > MAX_LINES:
        return draw_lines_apart(comparison, last)
    drawn = [charts.draw_panel(_shorten_names(panel), STYLE) for panel in panels]
    columns = 2 if len(drawn) == 4 else PER_ROW["charts"]
    return _arrange(comparison, drawn, columns)


def draw_lines_apart(comparison: Comparison, panel: LineChart) -> Chart:
    """Draw a small chart for each line, over all others in grey, the last and best one first."""
    x_scale, y_scale = charts.fit_scales(panel)
    rule = (panel.rule[0], "") if panel.rule else None
    bare = replace(panel, x="", y="", title="", rule=rule, x_scale=x_scale, y_scale=y_scale)
    lines = [replace(line, band=None, colour=0, shades=1) for line in panel.lines]
    grey = STYLE.palette.with_series(STYLE.palette.rule)
    behind = replace(SMALL, palette=grey, has_legend=False)
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
    drawn = [_draw_condition(comparison, condition) for condition in comparison.conditions]
    seeds = f"filled: the {name_extreme(comparison)}; open: may be best too; "
    several = f"{seeds}small dots: seeds; bars: 95 % intervals"
    one = "one seed each, which cannot tell a difference from chance"
    marks = dict.fromkeys(what for variant in comparison.variants for what in variant.flag_kinds)
    signs = ", ".join(f"{what} {SIGNS.get(what, OTHER_SIGN)}" for what in marks)
    notes = [several if len(comparison.seeds) > 1 else one]
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


def _draw_condition(comparison: Comparison, condition: Condition) -> Chart:
    standings = rank_variants(comparison, condition)
    seen, digits = choose_scale(standings), count_decimals(comparison)
    rows = [_describe(one, number, seen, digits) for number, one in enumerate(standings)]
    seeds = [
        {"row": row["row"], "seed": value, "colour": row["colour"]}
        for row, one in zip(rows, standings, strict=True)
        for value in (one.values.values() if row["interval"] else ())
        # altair would widen the scale for a seed outside it
        if seen.low <= value <= seen.high
    ]
    arrow = "\u2192" if comparison.better == "high" else "\u2190"
    x_name = shorten(f"{format_measure(comparison)}, better {arrow}")
    labels = label_expression([shorten(_label(one)) for one in standings])
    y = alt.Y(
        "row:N",
        sort=None,
        title=None,
        axis=alt.Axis(labelExpr=labels, ticks=False, domain=False, labelLimit=220),
    )

    def x(field: str) -> alt.X:
        found = x_axis(field, x_name, seen, STYLE)
        found["axis"]["gridColor"] = STYLE.palette.rule
        return found

    colour = alt.Color("colour:N", scale=None)
    base = start_chart(rows).encode(y=y)
    # variants outside the scale, and those without a value, have a note in place of a point
    inside = base.transform_filter("isValid(datum.mean)")
    interval = inside.mark_rule(strokeWidth=4, opacity=0.4, strokeCap="round")
    mean = inside.mark_point(filled=True, size=60, opacity=1, strokeWidth=1.6)
    dots = start_chart(seeds).mark_circle(size=9, opacity=1, yOffset=7)
    notes = base.mark_text(fontSize=9, color=STYLE.palette.quiet)
    layers = [
        interval.encode(x=x("low"), x2="high", color=colour),
        mean.encode(
            x=x("mean"),
            fill=alt.Fill("fill:N", scale=None),
            stroke=alt.Stroke("colour:N", scale=None),
        ),
        notes.encode(x=alt.value(110), text="note:N"),
    ]
    if seeds:
        layers.insert(2, dots.encode(x=x("seed"), y=y, color=colour))
    title = shorten(capitalize(condition.describe()))
    heading = alt.Title(title, anchor="start", frame="group", fontSize=12)
    return alt.layer(*layers).properties(width=220, height=24 * len(rows), title=heading)


def _describe(one: Standing, number: int, seen: Scale, digits: int) -> dict[str, Any]:
    """Return the row of one variant: numbers within the chart, or a note in their place."""
    palette = STYLE.palette
    colour = palette.series[0] if one.verdict in ("best", "possible") else palette.faint
    row: dict[str, Any] = {"row": str(number), "colour": colour, "fill": colour, "note": ""}
    row |= {"mean": None, "low": None, "high": None, "interval": False}
    if one.mean is None:
        return row | {"note": shorten("; ".join(one.missing_reasons))}
    value = numbers.format_fixed(one.mean.mean, digits)
    if one.mean.mean < seen.low:
        return row | {"note": f"\u25c2 {value}"}
    if one.mean.mean > seen.high:
        return row | {"note": f"{value} \u25b8"}

    row["mean"] = one.mean.mean
    # open: the point of a variant that may be best is white inside
    if one.verdict == "possible":
        row["fill"] = "#ffffff"
    if one.mean.low is not None and one.mean.high is not None:
        row["interval"] = True
        row |= {"low": max(one.mean.low, seen.low), "high": min(one.mean.high, seen.high)}
    return row


def _label(one: Standing) -> str:
    signs = dict.fromkeys(SIGNS.get(what, OTHER_SIGN) for what in one.variant.flag_kinds)
    return " ".join([one.variant.name, *signs])
