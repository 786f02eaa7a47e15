"""The figure of an evaluation, as a PNG file in the run directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.diagnostics.report.trends import as_swept
from zoo.recipe import Recipe
from zoo.verbs.curves import BLUE, COLOURS, GREY, by_position, finish, labelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {"resolutions": "resolution in pixels", "lengths": "length of windows in tokens"}
LOSS, ACCURACY = "test/loss", "test/accuracy"

Result = Mapping[str, Any]


def draw(recipe: Recipe, result: Result, run: Path, trained: int | str) -> Path:
    """Against size, and of a text by place, loss and accuracy; then variants. `trained` is the size of training."""
    from matplotlib.figure import Figure

    kind = next((kind for kind in KINDS if kind in result), None)
    panels = [*_panels(recipe, result, kind, trained)]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6 if columns == 1 else 10, 4 * rows), layout="constrained", dpi=150)
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, panel in zip(places, panels, strict=False):
        panel(axes)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    path = run / f"{kind or 'variants'}.png"
    figure.savefig(path)
    return path


def _panels(recipe: Recipe, result: Result, kind: str | None, trained: int | str) -> list[Callable[[Axes], None]]:
    panels: list[Callable[[Axes], None]] = []
    metrics = {"resolutions": (ACCURACY,), "lengths": (LOSS, ACCURACY), None: ()}[kind]
    for metric in metrics:
        assert kind is not None
        panels.append(partial(_by_size, title=recipe.name, result=result, kind=kind, metric=metric, trained=trained))
        key = "positions" if metric == LOSS else "accuracies"
        if kind == "lengths" and key in result:  # a text has losses by place, a class has none
            panels.append(partial(by_position, result=result, key=key, metric=metric, trained=int(trained)))
    if "variants" in result:
        panels.append(partial(_bars, title=recipe.name, result=result))
    return panels


def _by_size(axes: Axes, title: str, result: Result, kind: str, metric: str, trained: int | str) -> None:
    """A curve of what the model is, and one for each rule from the size of training on.

    Sizes whose sides are not equal have no order: then all stand side by side.
    """
    own = {str(result["size"]): result["metrics"]} if as_swept(result, kind) else {}
    plain = {**own, **result[kind]}
    plain = {size: plain[size][metric] for size in sorted(plain, key=_order) if metric in plain[size]}
    lines = {"as it is": plain}
    for rule, sizes in result.get("rules", {}).items():
        found = {size: sizes[size][metric] for size in sorted(sizes, key=_order) if metric in sizes[size]}
        if found and rule != "none":
            start = {str(trained): plain[str(trained)]} if str(trained) in plain else {}
            lines[rule] = start | found
    names = sorted({size for points in lines.values() for size in points}, key=_order)
    parted = any("x" in size for size in names)
    at = {size: float(number) if parted else float(size) for number, size in enumerate(names)}
    for (name, points), colour in zip(lines.items(), COLOURS * len(lines), strict=False):
        places = [at[size] for size in points]
        style, label = "none" if parted else "solid", name if len(lines) > 1 else None
        axes.plot(places, [*points.values()], marker="o", linestyle=style, color=colour, label=label)
        if len(lines) == 1:
            labelled(axes, [(at[size], value) for size, value in points.items()])
    values = [value for points in lines.values() for value in points.values()]
    if not values:
        return
    room = max(0.0, 0.1 * max(values) - (max(values) - min(values))) / 2  # so that a thousandth is no cliff
    axes.update_datalim([(at[names[0]], min(values) - room), (at[names[0]], max(values) + room)])
    scaled = not parted and "x" not in str(trained)
    if scaled or str(trained) in at:
        place = float(trained) if scaled else at[str(trained)]
        axes.axvline(place, color=GREY, linestyle="--", linewidth=1, label=f"trained at {trained}")
    if kind == "lengths":
        axes.set_xscale("log", base=2)
    axes.set_xticks([at[size] for size in names], names)
    axes.minorticks_off()
    axes.set(xlabel=KINDS[kind], ylabel=metric.replace("/", " "), title=title)
    finish(axes)


def _bars(axes: Axes, title: str, result: Result) -> None:
    """The data as they are, and their variants."""
    metric = ACCURACY if ACCURACY in result["metrics"] else next(iter(result["metrics"]))
    found = {"as in training": result["metrics"], **result["variants"]}
    values = {name: one[metric] for name, one in found.items() if metric in one}
    drawn = axes.bar([*values], [*values.values()], color=[GREY, *[BLUE] * (len(values) - 1)], width=0.6)
    axes.bar_label(drawn, fmt="%.4f", fontsize=9)
    axes.set(ylabel=metric.replace("/", " "), title=f"{title}: variants of the data")
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def _order(size: str) -> tuple[int, int]:
    """By the number of tokens or pixels, then by height."""
    sides = [int(side) for side in size.split("x")]
    return (sides[0] * sides[1], sides[0]) if len(sides) > 1 else (sides[0] ** 2, sides[0])
