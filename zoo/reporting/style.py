"""Colours, axes, titles and sizes of all charts.

The palette is readable on light and dark backgrounds and with colour blindness.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import altair as alt

from zoo.reporting.numbers import UNPRINTABLE, format_number
from zoo.reporting.panel import Panel, Scale

Chart = alt.Chart | alt.LayerChart | alt.ConcatChart | alt.FacetChart
LEVELS = 17  # number of colours of a ramp in a table; odd, so that 0 has its own colour


@dataclass(frozen=True)
class Palette:
    """The colours of one theme, as hexadecimal numbers or CSS variables.

    Args:
        ink: Colour of titles.
        quiet: Colour of labels.
        faint: Colour of marks in the background.
        rule: Colour of grid lines.
        paper: Background colour.
        series: Colours of lines and points.
        ramps: Colours from the lowest to the highest value, by name of the ramp.
    """

    ink: str
    quiet: str
    faint: str
    rule: str
    paper: str
    series: tuple[str, ...]
    ramps: dict[str, tuple[str, ...]]

    def colour(self, number: int, count: int) -> str:
        """Return the colour of one of `count` series. The colours of many series are a ramp."""
        # The lightest levels are left out: they are hard to see on the background.
        if count <= len(self.series):
            return self.series[number]
        return self.level("weights", round(4 + 12 * number / (count - 1)))

    def level(self, ramp: str, level: int) -> str:
        """Return one of the `LEVELS` colours of a ramp."""
        return mix(self.ramps[ramp], level / (LEVELS - 1))

    def level_ink(self, ramp: str, level: int) -> str:
        """Return the colour of text on one of the `LEVELS` colours of a ramp."""
        return choose_ink(self.level(ramp, level))

    def with_series(self, *series: str) -> Palette:
        """Return the palette with other colours of lines and points."""
        return replace(self, series=series)


class VariablePalette(Palette):
    """Colours as CSS variables, which depend on the theme of the page."""

    def level(self, ramp: str, level: int) -> str:
        return f"var(--{LETTERS[ramp]}{level})"

    def level_ink(self, ramp: str, level: int) -> str:
        return f"var(--{LETTERS[ramp]}{level}i)"


EVEN_LUMINANCE = (1.05 * 0.05) ** 0.5 - 0.05
"""The luminance on which black and white have the same contrast."""
LETTERS = {"weights": "w", "signed": "d"}  # prefixes of the CSS variables of a ramp's levels

# From dark blue to yellow (Nunez, Anderton and Renslow 2018), the same for light and dark themes.
CIVIDIS = (
    "#00204d",
    "#123570",
    "#3b496c",
    "#575d6d",
    "#707173",
    "#8a8678",
    "#a59c74",
    "#c3b369",
    "#e1cc55",
    "#ffea46",
)

LIGHT = Palette(
    ink="#1e2126",
    quiet="#5c626b",
    faint="#8b919a",
    rule="#e6e4dc",
    paper="#fffefb",
    series=("#0b6aa8", "#c8500a", "#11835f", "#9a4a86", "#a67a00", "#4a9ccd", "#6b6f76", "#7a4a1f"),
    ramps={
        "weights": ("#f6f5ee", "#dfe9cb", "#a9d5bf", "#62b3bd", "#3287b1", "#2c5a9a", "#1b2a63"),
        "signed": ("#1f4e8c", "#5f93c4", "#b5cfe3", "#f5f4f0", "#f1c9a0", "#dd8a45", "#9a4708"),
        "cividis": CIVIDIS,
    },
)

DARK = Palette(
    ink="#e7e8ea",
    quiet="#a9afb8",
    faint="#7d848e",
    rule="#31353c",
    paper="#16181c",
    series=("#5cb0ea", "#ff9554", "#3fcf9f", "#e2a0d0", "#f0c24b", "#9fd4f7", "#b3b8c0", "#cfa27a"),
    ramps={
        "weights": ("#22262e", "#273b5b", "#2f5b86", "#3e87a3", "#6cb4a6", "#b5d88f", "#f4f3a1"),
        "signed": ("#8cc2f5", "#3f7fc0", "#294a6d", "#24282f", "#6b4526", "#c47a35", "#ffbd80"),
        "cividis": CIVIDIS,
    },
)

VARIABLES = VariablePalette(
    ink="var(--ink)",
    quiet="var(--quiet)",
    faint="var(--faint)",
    rule="var(--rule)",
    paper="var(--paper)",
    series=tuple(f"var(--s{number})" for number in range(len(LIGHT.series))),
    ramps={},
)


def mix(colours: Sequence[str], share: float) -> str:
    """Return the colour at a fraction, 0 to 1, of a ramp."""
    # Interpolate the channels of the two nearest colours.
    position = share * (len(colours) - 1)
    left = min(int(position), len(colours) - 2)
    near, far = channels(colours[left]), channels(colours[left + 1])
    mixed = [round(a + (b - a) * (position - left)) for a, b in zip(near, far, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def channels(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue, 0 to 255, of a colour such as #0b6aa8."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return red, green, blue


def measure_contrast(colour: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2, "contrast ratio")."""
    dark, light = sorted(map(_measure_luminance, (colour, other)))
    return (light + 0.05) / (dark + 0.05)


def _measure_luminance(colour: str) -> float:
    """Return the relative luminance of a colour, from 0 to 1 (WCAG 2.2)."""
    luminance = 0.0
    for weight, channel in zip((0.2126, 0.7152, 0.0722), channels(colour), strict=True):
        share = channel / 255
        linear = share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
        luminance += weight * linear
    return luminance


def choose_ink(colour: str) -> str:
    """Return black or white, whichever is easier to read on a colour.

    The contrast is at least 4.58.
    """
    return "#000000" if _measure_luminance(colour) > EVEN_LUMINANCE else "#ffffff"


def css_variables(palette: Palette) -> dict[str, str]:
    """Return the CSS variables of a theme, {name: value}."""
    variables = {
        name: getattr(palette, name) for name in ("ink", "quiet", "faint", "rule", "paper")
    }
    variables |= {f"s{number}": colour for number, colour in enumerate(palette.series)}
    variables |= {name: ",".join(ramp) for name, ramp in palette.ramps.items()}
    for ramp, letter in LETTERS.items():
        for level in range(LEVELS):
            variables[f"{letter}{level}"] = palette.level(ramp, level)
            variables[f"{letter}{level}i"] = palette.level_ink(ramp, level)
    return variables


def filter_tables(ramp: Sequence[str]) -> dict[str, str]:
    """Return the tables of an SVG filter that maps grey levels to the colours of a ramp."""
    columns = zip(*map(channels, ramp), strict=True)
    tables = [" ".join(f"{channel / 255:.3f}" for channel in column) for column in columns]
    return dict(zip("RGB", tables, strict=True))


@dataclass(frozen=True)
class Style:
    """The style of charts, for HTML pages or for figures.

    Args:
        palette: The colours.
        width: Width in pixels: of the chart in a page, of the plot in a figure.
        height: Height in pixels, of the same part.
        is_page: The page shows the title, the legend and the colour scale itself.
        has_legend: Draw the legend in a figure.
    """

    palette: Palette = LIGHT
    width: float = 300
    height: float = 190
    is_page: bool = False
    has_legend: bool = True


def start_chart(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """Return a chart of rows without marks."""
    # One string, because Altair copies its data many times.
    data = alt.Data(values=json.dumps(rows), format=alt.DataFormat(type="json"))  # type: ignore[no-untyped-call]
    return alt.Chart(data)


def x_axis(field: str, name: str, scale: Scale, style: Style) -> alt.X:
    """Return the horizontal encoding of a field, with a line at 0."""
    axis = _axis(scale, 6, gridColor=_mark_zero(style, "transparent"))
    return alt.X(f"{field}:Q", title=clean(name), scale=_vega_scale(scale), axis=axis)


def y_axis(field: str, scale: Scale, style: Style) -> alt.Y:
    """Return the vertical encoding of a field. The name of the axis is above the chart."""
    grid = _mark_zero(style, style.palette.rule)
    axis = _axis(scale, 5, gridColor=grid, domain=False, ticks=False)
    return alt.Y(f"{field}:Q", title=None, scale=_vega_scale(scale), axis=axis)


def label_expression(labels: Sequence[str] | Mapping[str, Any]) -> str:
    """Return a Vega expression that replaces an index by its label."""
    return f"{json.dumps([clean(label) for label in labels])}[datum.value]"


def clean(text: str) -> str:
    """Replace characters that HTML, XML or UTF-8 cannot represent."""
    return UNPRINTABLE.sub("\ufffd", text)


def finish_chart(
    chart: Chart, panel: Panel, style: Style, *, fit: Literal["fit", "fit-x", "pad"] = "fit"
) -> Chart:
    """Set the size and the title of a chart. In a page the title is the name of the y axis."""
    if style.is_page:
        title = alt.Title(
            clean(panel.y),
            anchor="start",
            frame="bounds",
            fontWeight="normal",
            fontSize=11,
            offset=10,
            color=style.palette.quiet,
        )
        # a page gives each chart its size, so axes and title have to fit within it
        autosize = alt.AutoSizeParams(type=fit, contains="padding")
        return chart.properties(
            width=style.width, height=style.height, title=title, autosize=autosize
        )
    return chart.properties(width=style.width, height=style.height, title=paper_title(panel, style))


def paper_title(panel: Panel, style: Style) -> alt.Title:
    """Return the title of a figure, with the name of the y axis as its subtitle."""
    return alt.Title(
        clean(panel.title),
        subtitle=clean(panel.y),
        anchor="start",
        frame="group",
        fontSize=12,
        offset=10,
        color=style.palette.ink,
        subtitleColor=style.palette.quiet,
    )


def _vega_scale(scale: Scale) -> alt.Scale:
    kind: Literal["log", "linear"] = "log" if scale.log else "linear"
    return alt.Scale(domain=[scale.low, scale.high], nice=False, zero=False, type=kind)


def _axis(scale: Scale, count: int, **options: Any) -> alt.Axis:
    # Explicit ticks need labels; Vega chooses round numbers on a linear axis.
    ticks = scale.ticks or (scale.powers(count) if scale.log else ())
    # labels stay below their ticks, also at the ends
    options = {"labelFlush": False, **options}
    if ticks:
        labels = json.dumps([clean(_label_tick(scale, tick)) for tick in ticks])
        expression = f"{labels}[indexof({json.dumps(ticks)}, datum.value)]"
        return alt.Axis(values=list(ticks), labelExpr=expression, **options)
    return alt.Axis(tickCount=count, **options)


def _label_tick(scale: Scale, tick: float) -> str:
    return scale.labels[tick] if tick in scale.labels else format_number(tick, 5)


def _mark_zero(style: Style, otherwise: str) -> Any:
    """Return the colour of grid lines, with another one for the line at 0."""
    return alt.condition("datum.value === 0", alt.value(style.palette.faint), alt.value(otherwise))
