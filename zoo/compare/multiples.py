"""Many lines as small drawings, one for each, with all the others in grey behind it: no colours tell thirty apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.compare.painting import BLUE, GREY, LINE, framed, plain, scaled
from zoo.compare.result import Comparison
from zoo.compare.series import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY = 12  # lines that are still drawn in one
ABREAST, SIZE = 7, (1.7, 1.35)  # drawings of so many inches


def multiples(comparison: Comparison, chart: Chart) -> Figure:
    """The lines of a chart, the last and best one first."""
    lines = tuple(reversed(chart.lines))
    figure, every = framed(comparison, len(lines), ABREAST, SIZE, f" {chart.panel.title}")
    figure.supxlabel(chart.panel.x, fontsize=8, color=GREY)
    figure.supylabel(plain(chart.panel.y), fontsize=8, color=GREY)
    for number, (axes, line) in enumerate(zip(every, lines, strict=True)):
        for other in lines:
            axes.plot(other.x.tolist(), other.y.tolist(), color=LINE, linewidth=0.6)
        lone = "o" if int(line.y.isfinite().sum()) == 1 else ""
        axes.plot(line.x.tolist(), line.y.tolist(), color=BLUE, linewidth=1.6, marker=lone, markersize=3)
        scaled(axes, chart)
        axes.set_title(plain(line.label), fontsize=8, pad=3)
        _outer(axes, left=number % ABREAST == 0, below=number + ABREAST >= len(lines))
    return figure


def _outer(axes: Axes, *, left: bool, below: bool) -> None:
    """Numbers stand where no drawing follows."""
    axes.tick_params(labelsize=6, length=2, labelleft=left, labelbottom=below)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
