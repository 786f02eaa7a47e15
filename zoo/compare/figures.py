"""Figures of a comparison, as PNG files in its folder."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.compare.charts import Chart, by_cost, by_position, by_size, in_training
from zoo.compare.ranking import Standing, ranking, window
from zoo.compare.results import Comparison
from zoo.compare.text import capital, decimals, measured, named, number, question
from zoo.diagnostics.drawing.axes import colour
from zoo.diagnostics.drawing.colours import LEVELS
from zoo.diagnostics.drawing.scales import Scale
from zoo.reporting.spec import Points
from zoo.run import atomic_io

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY, LINE, BLUE = "#6b6f76", "#d8d6ce", "#0b6aa8"
LONGEST, WHOLE = 40, 90  # letters of a name, and of the title of a figure


def framed(
    comparison: Comparison, count: int, abreast: int, size: tuple[float, float], more: str = ""
) -> tuple[Figure, list[Axes]]:
    """A figure under the question and what is said after it, with so many drawings of a size in inches, in rows of so many;
    the others are hidden.
    """
    from matplotlib.figure import Figure

    columns = min(count, abreast)
    rows = -(-count // columns)
    figure = Figure(
        figsize=(size[0] * columns + 1, size[1] * rows + 0.6), layout="constrained", dpi=150
    )
    figure.suptitle(plain(f"{question(comparison)}{more}", WHOLE), fontsize=12)
    every = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in every[count:]:
        axes.set_axis_off()
    return figure, every[:count]


def scaled(axes: Axes, chart: Chart) -> None:
    """The ends, steps and marks of a chart's axes."""
    if chart.up:
        axes.set_ylim(chart.up.low, chart.up.high)
    if chart.mark:
        axes.axvline(chart.mark[0], color=GREY, linestyle=":", linewidth=1)
    if chart.across and chart.across.log:
        axes.set_xscale("log", base=2)
    if chart.across:
        axes.set_xticks(chart.across.marks, [f"{mark:g}" for mark in chart.across.marks])
        axes.minorticks_off()


def finish(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=LINE, linewidth=0.5)
    axes.set_axisbelow(True)


def plain(text: str, longest: int = LONGEST) -> str:
    """Short enough, and no formula."""
    short = text if len(text) <= longest else f"{text[: longest - 1]}\u2026"
    return "".join(letter for letter in short if letter.isprintable()).replace("$", r"\$")


MANY = 12  # lines that are still drawn in one
ABREAST_MULTIPLES, SIZE = 7, (1.7, 1.35)  # drawings of so many inches


def multiples(comparison: Comparison, chart: Chart) -> Figure:
    """The lines of a chart, the last and best one first."""
    lines = tuple(reversed(chart.lines))
    figure, every = framed(comparison, len(lines), ABREAST_MULTIPLES, SIZE, f" {chart.panel.title}")
    figure.supxlabel(chart.panel.x, fontsize=8, color=GREY)
    figure.supylabel(plain(chart.panel.y), fontsize=8, color=GREY)
    for position, (axes, line) in enumerate(zip(every, lines, strict=True)):
        for other in lines:
            axes.plot(other.x.tolist(), other.y.tolist(), color=LINE, linewidth=0.6)
        lone = "o" if int(line.y.isfinite().sum()) == 1 else ""
        axes.plot(
            line.x.tolist(), line.y.tolist(), color=BLUE, linewidth=1.6, marker=lone, markersize=3
        )
        scaled(axes, chart)
        axes.set_title(plain(line.label), fontsize=8, pad=3)
        _outer(
            axes,
            left=position % ABREAST_MULTIPLES == 0,
            below=position + ABREAST_MULTIPLES >= len(lines),
        )
    return figure


def _outer(axes: Axes, *, left: bool, below: bool) -> None:
    """Numbers stand where no drawing follows."""
    axes.tick_params(labelsize=6, length=2, labelleft=left, labelbottom=below)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)


ABREAST_RANKED = 4
SEEN = "filled: the best mean; open: within the spread of seeds of it; small dots: seeds; bars: 95 % intervals"
ALONE = "one seed each, which cannot tell a difference from chance"
SIGNS = {"parameters": "\u2020", "attention": "\u2021"}
OTHER = "*"  # the sign of any other flag


def ranked(comparison: Comparison) -> Figure:
    height = max(2.0, 0.9 + 0.3 * len(comparison.variants))
    figure, every = framed(comparison, len(comparison.places), ABREAST_RANKED, (4.2, height))
    places = decimals(comparison)
    for axes, place in zip(every, comparison.places, strict=True):
        standings = ranking(comparison, place)
        seen = window(standings)
        for row, one in enumerate(standings):
            _standing(axes, one, row, seen, places)
        axes.set_yticks(
            range(len(standings)), [plain(_label(one)) for one in standings], fontsize=8
        )
        axes.set_ylim(len(standings) - 0.5, -0.5)
        axes.set_xlim(seen.low, seen.high)
        better = "\u2192" if comparison.better == "high" else "\u2190"
        axes.set(
            title=plain(capital(named(comparison, place))),
            xlabel=plain(f"{measured(comparison)}, better {better}"),
        )
        finish(axes)
    said = [SEEN if len(comparison.seeds) > 1 else ALONE, *_signs(comparison)]
    figure.supxlabel(plain("; ".join(said), 3 * WHOLE), fontsize=8, color=GREY)
    return figure


def _label(one: Standing) -> str:
    signs = dict.fromkeys(SIGNS.get(what, OTHER) for what in one.variant.marks)
    return " ".join([one.variant.name, *signs])


def _signs(comparison: Comparison) -> list[str]:
    """What the signs beside names say, of those that are there."""
    found = dict.fromkeys(what for variant in comparison.variants for what in variant.marks)
    told = [f"{what} {SIGNS.get(what, OTHER)}" for what in found]
    return [f"not as in most: {', '.join(told)}"] if told else []


def _standing(axes: Axes, one: Standing, row: int, seen: Scale, places: int) -> None:
    paint = BLUE if one.verdict in ("best", "within") else GREY
    if one.mean is None:
        _note(axes, row, "; ".join(one.lacking), 0.5)
        return
    if not seen.low <= one.mean.mean <= seen.high:
        below = one.mean.mean < seen.low
        value = number(one.mean.mean, places)
        _note(axes, row, f"\u25c2 {value}" if below else f"{value} \u25b8", 0.02 if below else 0.98)
        return
    if one.mean.low is not None and one.mean.high is not None:
        ends = [one.mean.low, one.mean.high]
        axes.plot(ends, [row, row], color=paint, alpha=0.4, linewidth=4, solid_capstyle="round")
        axes.plot(
            list(one.values.values()),
            [row + 0.28] * len(one.values),
            ".",
            color=paint,
            markersize=3,
        )
    inside = "white" if one.verdict == "within" else paint
    axes.plot([one.mean.mean], [row], "o", color=paint, markerfacecolor=inside, markersize=6)


def _note(axes: Axes, row: int, words: str, share: float) -> None:
    """Words at a share of the width."""
    side = "left" if share < 0.5 else "right" if share > 0.5 else "center"
    axes.text(
        share,
        row,
        plain(words),
        transform=axes.get_yaxis_transform(),
        ha=side,
        va="center",
        fontsize=7,
        color=GREY,
    )


ABREAST = 3
BESIDE = 9  # names in a row of a legend
FEW = 12  # points that are marked on their line
COLOURS = (BLUE, "#c8500a", "#11835f", "#9a4a86", "#a67a00", "#4a9ccd", "#6b6f76", "#7a4a1f")
STYLES = ("-", "--", ":")


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """The ranking, and what else there is of curves by size and place, training and costs. Raises ZooError as `write`."""
    charts = {
        "sizes": by_size(comparison),
        "positions": by_position(comparison),
        "training": in_training(comparison),
    }
    figures = {"ranking": ranked(comparison)}
    figures |= {name: _lines(comparison, found) for name, found in charts.items() if found}
    if points := by_cost(comparison):
        figures["costs"] = _several(comparison, points)
    return [_written(figure, folder / f"{name}.png") for name, figure in figures.items()]


def _written(figure: Figure, path: Path) -> Path:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    atomic_io.write(file, path)
    return path


def _lines(comparison: Comparison, found: Sequence[Chart]) -> Figure:
    """All charts, or the last of them where its lines are too many to be told apart; all groups of a grid."""
    crowded = len(comparison.axes) < 2 and len(found[-1].lines) > MANY
    return multiples(comparison, found[-1]) if crowded else _several(comparison, found)


def _several(comparison: Comparison, found: Sequence[Chart | Points]) -> Figure:
    figure, every = framed(comparison, len(found), 2 if len(found) == 4 else ABREAST, (5.0, 3.6))
    labels = dict.fromkeys(
        line.label for one in found if isinstance(one, Chart) for line in one.lines
    )
    many = len(labels) > len(COLOURS)  # colours of neighbours look alike
    styles = {
        label: STYLES[number % len(STYLES)] if many else "-" for number, label in enumerate(labels)
    }
    for axes, one in zip(every, found, strict=True):
        _curves(axes, one, styles) if isinstance(one, Chart) else _points(axes, one)
        finish(axes)
    named = {
        label: handle
        for axes in every
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    wide = (
        {"loc": "outside lower center", "ncols": BESIDE}
        if len(named) > MANY
        else {"loc": "outside right center"}
    )
    figure.legend(named.values(), named.keys(), frameon=False, fontsize=8, **wide)
    return figure


def _curves(axes: Axes, chart: Chart, styles: Mapping[str, str]) -> None:
    for line in chart.lines:
        paint = _colour(line.look)
        look: dict[str, Any] = {"linestyle": styles[line.label], "linewidth": 1.5, "color": paint}
        look |= {"marker": "o", "markersize": 4} if len(line.x) <= FEW else {}
        axes.plot(line.x.tolist(), line.y.tolist(), label=plain(line.label), **look)
        if line.band:
            low, high = (end.tolist() for end in line.band)
            axes.fill_between(line.x.tolist(), low, high, color=paint, alpha=0.15, linewidth=0)
    scaled(axes, chart)
    axes.set(title=plain(chart.panel.title), xlabel=chart.panel.x, ylabel=plain(chart.panel.y))


def _points(axes: Axes, panel: Points) -> None:
    for position, (label, (x, y)) in enumerate(panel.groups.items()):
        look = colour(position, len(panel.groups))
        axes.plot(x.tolist(), y.tolist(), "o", label=plain(label), color=_colour(look))
    axes.set(title=panel.title, xlabel=panel.x, ylabel=plain(panel.y))


def _colour(look: str) -> Any:
    """Of a class of colours of the page."""
    from matplotlib import colormaps

    return (
        COLOURS[int(look[1:])]
        if look[0] == "s"
        else colormaps["viridis_r"](int(look[1:]) / (LEVELS - 1))
    )
