"""What all figures of a comparison have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.compare.answer import question
from zoo.compare.result import Comparison
from zoo.compare.series import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY, LINE, BLUE = "#6b6f76", "#d8d6ce", "#0b6aa8"
LONGEST, WHOLE = 40, 90  # letters of a name, and of the title of a figure


def framed(
    comparison: Comparison, count: int, abreast: int, size: tuple[float, float], more: str = ""
) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """A figure under the question and what is said after it, with so many drawings of a size in inches, in rows of so many;
    the others are hidden.
    """
    from matplotlib.figure import Figure

    columns = min(count, abreast)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns + 1, size[1] * rows + 0.6), layout="constrained", dpi=150)
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
