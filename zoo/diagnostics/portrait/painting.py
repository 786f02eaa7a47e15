"""Panels as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoo.reporting.spec import Curves, Map, Mosaic, Panel, Points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

INK, GREY, HIDDEN, BLUE, RED = "#222222", "#8a8a8a", "#ececec", "#0072b2", "#d55e00"
SIGNED, UNSIGNED, HEADS = "RdBu_r", "cividis", "viridis"  # told apart by everyone
WIDTH, HEIGHT, HEADING, DPI = 8.0, 2.9, 0.5, 120
LEVELS = 33  # of a scale of colours, odd so that 0 has its own
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "figure.facecolor": "white",
}


def paint(title: str, subtitle: str, panels: Sequence[Panel], path: Path) -> None:
    """Draw panels, two in a row, into a PNG file of few colours."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = -(-len(panels) // 2)
    height = HEIGHT * rows + HEADING
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, rect=(0, 0, 1, 1 - 0.35 / height))
        figure = Figure(figsize=(WIDTH, height), layout=layout, dpi=DPI)
        figure.text(0.012, 1 - 0.12 / height, title, weight="bold", size=13, va="top", color=INK)
        figure.text(0.988, 1 - 0.15 / height, subtitle, size=8.5, ha="right", va="top", color=GREY)
        spots = [*figure.subplots(rows, 2, squeeze=False).flat]
        for spot, panel in zip(spots, panels, strict=False):
            _paint(spot, panel)
        for spot in spots[len(panels) :]:
            spot.set_axis_off()
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    from PIL import Image

    whole = BytesIO()
    figure.savefig(whole, format="png")
    picture = Image.open(whole).convert("RGB")
    few = BytesIO()
    picture.quantize(dither=Image.Dither.NONE).save(few, "PNG", optimize=True)
    path.write_bytes(few.getvalue())


def _paint(axes: Axes, panel: Panel) -> None:
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    painters: dict[type[Panel], Any] = {
        Curves: _curves,
        Map: _map,
        Mosaic: _mosaic,
        Points: _points,
    }
    painters[type(panel)](axes, panel)


def _colours(count: int) -> Any:
    """A colour for each of several heads, or one."""
    import matplotlib

    return (
        [BLUE]
        if count == 1
        else matplotlib.colormaps[HEADS](torch.linspace(0, 0.88, count).numpy())
    )


def _curves(axes: Axes, panel: Curves) -> None:
    if panel.band:
        axes.fill_between(
            panel.places, *panel.band, color=BLUE, alpha=0.15, linewidth=0, label="middle 80 %"
        )
    for (label, line), colour in zip(panel.lines.items(), _colours(len(panel.lines)), strict=True):
        axes.plot(
            panel.places,
            line,
            color=colour,
            linewidth=1.4,
            label=label if len(panel.lines) > 1 else "mean",
        )
    axes.axhline(0, color=GREY, linewidth=0.7, zorder=0)
    if panel.places.min() < 0:
        axes.axvline(0, color=GREY, linewidth=0.7, zorder=0)
    axes.margins(x=0)
    _legend(axes, 1 if panel.band is None else 2)


def _points(axes: Axes, panel: Points) -> None:
    from matplotlib.ticker import MaxNLocator

    for (label, (x, y)), colour in zip(
        panel.groups.items(), _colours(len(panel.groups)), strict=True
    ):
        axes.plot(x, y, "o", markersize=3.4, color=colour, label=label, markeredgewidth=0)
    if panel.steep:
        axes.set_yscale("log")
    if panel.square:
        axes.set_aspect("equal", adjustable="datalim")
        axes.axhline(0, color=GREY, linewidth=0.7, zorder=0)
        axes.axvline(0, color=GREY, linewidth=0.7, zorder=0)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.text(0.98, 0.96, panel.note, transform=axes.transAxes, ha="right", va="top", color=GREY)
    _legend(axes, 1)


def _legend(axes: Axes, alone: int) -> None:
    """To the right of what it explains, unless it would explain one thing `alone`."""
    if len(axes.get_legend_handles_labels()[1]) > alone - (alone == 2):
        axes.legend(
            handlelength=1.0,
            handletextpad=0.4,
            labelspacing=0.3,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.02),
        )


def _map(axes: Axes, panel: Map) -> None:
    from matplotlib.ticker import MaxNLocator

    placed = _placed(panel.values, panel.corner)
    drawn = axes.imshow(
        panel.values.numpy(), **_scale(panel.values, panel.signed), **placed, aspect="auto"
    )
    if panel.mark:
        _mark(axes, panel.mark)
        axes.set_aspect("equal")
    axes.spines[:].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    _bar(axes, drawn, panel.values, panel.unit)


def _mosaic(axes: Axes, panel: Mosaic) -> None:
    """Two small maps in a row."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_title(panel.title, pad=14)
    for place, (values, label) in enumerate(zip(panel.values, panel.labels, strict=True)):
        small = axes.inset_axes((place % 2 * 0.52, 0.54 - place // 2 * 0.54, 0.48, 0.46))
        drawn = small.imshow(
            values.numpy(), **_scale(panel.values, signed=True), **_placed(values, panel.corner)
        )
        small.set_title(label, size=7.5, weight="normal", pad=2, loc="center")
        small.set(xticks=(), yticks=())
        small.spines[:].set_visible(False)
        if panel.mark:
            _mark(small, panel.mark)
    _bar(axes, drawn, panel.values, panel.unit)


def _bar(axes: Axes, drawn: AxesImage, values: Tensor, unit: str) -> None:
    """The scale of colours, as far as it is used."""
    bar = axes.figure.colorbar(drawn, cax=axes.inset_axes((1.03, 0, 0.045, 1)), label=unit)
    bar.outline.set_visible(False)
    seen = values.nan_to_num()
    if seen.any():
        bar.ax.set_ylim(min(0.0, float(seen.min())), max(0.0, float(seen.max())))


def _mark(axes: Axes, patch: tuple[int, int]) -> None:
    for colour, width in (("white", 2.0), (INK, 1.0)):  # seen on light and on dark
        axes.plot(patch[1], patch[0], "s", ms=4, mfc="none", mec=colour, mew=width)


def _placed(values: Tensor, corner: tuple[int, int]) -> dict[str, Any]:
    """Each value with its row and column in its middle."""
    (rows, columns), (top, left) = values.shape, corner
    return {"extent": (left - 0.5, left + columns - 0.5, top + rows - 0.5, top - 0.5)}


def _scale(values: Tensor, signed: bool) -> dict[str, Any]:
    """Colours and their bounds: of signed values 0 lies in the middle, of others at the end."""
    import matplotlib

    most = float(values.nan_to_num().abs().max()) or 1.0
    colours = (
        matplotlib.colormaps[SIGNED if signed else UNSIGNED]
        .resampled(LEVELS)
        .with_extremes(bad=HIDDEN)
    )
    return {
        "interpolation": "nearest",
        "cmap": colours,
        "vmin": -most if signed else 0.0,
        "vmax": most,
    }
