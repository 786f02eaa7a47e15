"""Panels as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoo.diagnostics.portrait.panels import Curves, Map, Mosaic, Panel, Points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, HIDDEN, BLUE, RED = "#222222", "#8a8a8a", "#ececec", "#0072b2", "#d55e00"
SIGNED, UNSIGNED, HEADS = "RdBu_r", "cividis", "viridis"  # told apart by everyone
WIDTH, HEIGHT, HEADING, DPI, COLOURS = 8.0, 2.9, 0.5, 140, 96
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 8.5, "axes.titlesize": 9.5, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlecolor": INK, "axes.labelcolor": INK, "axes.edgecolor": GREY,
    "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8,
    "legend.frameon": False, "legend.fontsize": 7.5, "figure.facecolor": "white",
}  # fmt: skip


def paint(title: str, subtitle: str, panels: Sequence[Panel], path: Path) -> None:
    """Draw panels, two in a row, into a PNG file of few colours."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = -(-len(panels) // 2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT * rows + HEADING), layout="constrained", dpi=DPI)
        figure.text(0.012, 1 - 0.12 / figure.get_figheight(), title, weight="bold", size=13, va="top", color=INK)
        figure.text(0.988, 1 - 0.15 / figure.get_figheight(), subtitle, size=8.5, ha="right", va="top", color=GREY)
        figure.get_layout_engine().set(  # type: ignore[union-attr]
            w_pad=0.08, h_pad=0.08, rect=(0, 0, 1, 1 - 0.35 / figure.get_figheight())
        )
        spots = [*figure.subplots(rows, 2, squeeze=False).flat]
        for spot, panel in zip(spots, panels, strict=False):
            _paint(figure, spot, panel)
        for spot in spots[len(panels) :]:
            spot.set_axis_off()
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    from PIL import Image

    whole = BytesIO()
    figure.savefig(whole, format="png")
    picture = Image.open(whole).convert("RGB")
    few = BytesIO()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(few, "PNG", optimize=True)
    path.write_bytes(few.getvalue())


def _paint(figure: Figure, axes: Axes, panel: Panel) -> None:
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    {Curves: _curves, Map: _map, Mosaic: _mosaic, Points: _points}[type(panel)](figure, axes, panel)


def _colours(count: int) -> Any:
    """A colour for each of several heads, or one."""
    import matplotlib

    return [BLUE] if count == 1 else matplotlib.colormaps[HEADS](torch.linspace(0, 0.88, count).numpy())


def _curves(figure: Figure, axes: Axes, panel: Curves) -> None:
    if panel.band:
        axes.fill_between(panel.places, *panel.band, color=BLUE, alpha=0.15, linewidth=0, label="middle 80 %")
    for (label, line), colour in zip(panel.lines.items(), _colours(len(panel.lines)), strict=True):
        axes.plot(panel.places, line, color=colour, linewidth=1.4, label=label if len(panel.lines) > 1 else "mean")
    axes.axhline(0, color=GREY, linewidth=0.7, zorder=0)
    if panel.places.min() < 0:
        axes.axvline(0, color=GREY, linewidth=0.7, zorder=0)
    axes.margins(x=0)
    if panel.band or len(panel.lines) > 1:
        axes.legend(ncols=1 + len(panel.lines) // 5, handlelength=1.2, columnspacing=1.0, labelspacing=0.25)


def _map(figure: Figure, axes: Axes, panel: Map) -> None:
    drawn = axes.imshow(panel.values, **_scale(panel.values, panel.signed), aspect="auto", interpolation="nearest")
    if panel.mark:
        _mark(axes, panel.mark)
        axes.set_aspect("equal")
    axes.spines[:].set_visible(False)
    figure.colorbar(drawn, ax=axes, label=panel.unit, pad=0.02).outline.set_visible(False)  # type: ignore[operator]


def _mosaic(figure: Figure, axes: Axes, panel: Mosaic) -> None:
    axes.set_axis_off()
    scale = _scale(panel.values, signed=True)
    for place, (values, label) in enumerate(zip(panel.values, panel.labels, strict=True)):
        small = axes.inset_axes((place % 3 * 0.34, 0.52 - place // 3 * 0.52, 0.32, 0.4))
        drawn = small.imshow(values, **scale, interpolation="nearest")
        small.set_title(label, size=7.5, weight="normal", pad=2, loc="center")
        small.set(xticks=(), yticks=())
        small.spines[:].set_visible(False)
        if panel.mark:
            _mark(small, panel.mark)
    figure.colorbar(drawn, ax=axes, label=panel.unit, pad=0.02).outline.set_visible(False)  # type: ignore[operator]


def _points(figure: Figure, axes: Axes, panel: Points) -> None:
    for (label, (x, y)), colour in zip(panel.groups.items(), _colours(len(panel.groups)), strict=True):
        axes.plot(x, y, "o", markersize=3.2, color=colour, label=label, markeredgewidth=0)
    if panel.steep:
        axes.set_yscale("log")
    if panel.square:
        axes.set_aspect("equal", adjustable="datalim")
        axes.axhline(0, color=GREY, linewidth=0.7, zorder=0)
        axes.axvline(0, color=GREY, linewidth=0.7, zorder=0)
    if len(panel.groups) > 1:
        axes.legend(handletextpad=0.1, labelspacing=0.25, loc="center left", bbox_to_anchor=(1.0, 0.5))
    if panel.note:
        axes.text(0.98, 0.96, panel.note, transform=axes.transAxes, ha="right", va="top", color=GREY)


def _mark(axes: Axes, patch: tuple[int, int]) -> None:
    axes.plot(patch[1], patch[0], "s", markersize=4, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1)


def _scale(values: Tensor, signed: bool) -> dict[str, Any]:
    """Colours and their bounds: of signed values 0 lies in the middle, of others at the end."""
    import matplotlib

    found = values[~values.isnan()]
    most = float(found.abs().max()) or 1.0
    colours = matplotlib.colormaps[SIGNED if signed else UNSIGNED].with_extremes(bad=HIDDEN)
    return {"cmap": colours, "vmin": -most if signed else 0.0, "vmax": most}
