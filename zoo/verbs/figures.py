"""Figures of an evaluation, as PNG files in the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 24  # of places, so that each point is a mean of many tokens
BLUE, GREY = "#2b6cb0", "#999999"
CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}  # where a label crosses the curve


def draw(recipe: Recipe, result: dict[str, Any], run: Path, trained: int) -> Path:
    """Accuracy against resolution or loss against length, that of the data included; `trained` is that of training."""
    from matplotlib.figure import Figure

    kind = "resolutions" if "resolutions" in result else "lengths"
    placed = kind == "lengths" and "positions" in result  # a text has losses by place, a class has none
    figure = Figure(figsize=(10 if placed else 6, 4), layout="constrained", dpi=150)
    left, *right = figure.subplots(1, 2 if placed else 1, squeeze=False)[0]
    _curve(left, recipe, result, kind, trained)
    for axes in right:
        _by_position(axes, recipe, result, trained)
    path = run / f"{kind}.png"
    figure.savefig(path)
    return path


def _curve(axes: Axes, recipe: Recipe, result: dict[str, Any], kind: str, trained: int) -> None:
    option, metric = ("size", "test/accuracy") if kind == "resolutions" else ("length", "test/loss")
    found = {recipe.data.options[option]: result["metrics"]} | {
        int(size): metrics for size, metrics in result[kind].items()
    }
    points = sorted((size, metrics[metric]) for size, metrics in found.items() if metric in metrics)
    axes.plot(*zip(*points, strict=True), marker="o", color=BLUE)
    for size, value in points:
        axes.annotate(f"{value:.3f}", (size, value), textcoords="offset points", xytext=(4, 6), fontsize=9, bbox=CLEAR)
    low, high = min(value for _, value in points), max(value for _, value in points)
    room = max(0.0, 0.1 * high - (high - low)) / 2  # so that a thousandth does not look like a cliff
    axes.update_datalim([(points[0][0], low - room), (points[0][0], high + room)])
    axes.axvline(trained, color=GREY, linestyle="--", linewidth=1, label=f"trained at {trained}")
    units = "resolution in pixels" if option == "size" else "length of windows in tokens"
    axes.set(xlabel=units, ylabel=metric.replace("/", " "), title=recipe.name)
    if option == "length":
        axes.set_xscale("log", base=2)
    axes.set_xticks([size for size, _ in points], [str(size) for size, _ in points])
    axes.minorticks_off()
    _finish(axes)


def _by_position(axes: Axes, recipe: Recipe, result: dict[str, Any], trained: int) -> None:
    """Loss by place in the window, averaged over runs of places so that the curve can be read."""
    own = recipe.data.options["length"]
    longest = max((int(length) for length, found in result["lengths"].items() if "positions" in found), default=own)
    found = result["lengths"].get(str(longest), result)
    places = [(place, loss) for place, loss in enumerate(found.get("positions", ())) if loss is not None]
    run = max(1, len(places) // BINS)
    runs = [places[start : start + run] for start in range(0, len(places), run)]
    points = [(sum(p for p, _ in each) / len(each), sum(loss for _, loss in each) / len(each)) for each in runs]
    if points:
        axes.plot(*zip(*points, strict=True), color=BLUE)
    axes.axvline(trained, color=GREY, linestyle="--", linewidth=1, label=f"trained at {trained}")
    axes.set(xlabel="place in the window", ylabel="test loss", title=f"by position, windows of {longest}")
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.margins(x=0.08, y=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
