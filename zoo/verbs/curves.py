"""Curves of an evaluation: their colours, labels, and what a model does at each place in a window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo.diagnostics.report.trends import as_swept

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 24  # of places, so that each point is a mean of many tokens
BLUE, GREY = "#2b6cb0", "#999999"
COLOURS = (BLUE, "#c05621", "#2f855a", "#6b46c1", "#b83280", "#744210")
CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}  # where a label crosses the curve

Point = tuple[float, float]


def by_position(axes: Axes, result: Mapping[str, Any], key: str, metric: str, trained: int) -> None:
    """What is found by place in the longest windows that the model followed, as it is and by each rule."""
    longest = max((int(size) for size, found in result["lengths"].items() if key in found), default=result["size"])
    plain = result["lengths"].get(str(longest), result if as_swept(result, "lengths") else {})
    rules = {rule: sizes for rule, sizes in result.get("rules", {}).items() if rule != "none"}
    most = max((int(size) for sizes in rules.values() for size, one in sizes.items() if key in one), default=longest)
    shown = max(longest, most)  # a rule may follow where the model as it is does not
    lines = {"as it is" if shown == longest else f"as it is, windows of {longest}": plain}
    lines |= {rule: sizes.get(str(shown), {}) for rule, sizes in rules.items()}
    for (name, found), colour in zip(lines.items(), COLOURS * len(lines), strict=False):
        if points := [*_means(found.get(key, ()), found.get("asked", ()), trained)]:
            axes.plot(*zip(*points, strict=True), color=colour, label=name if len(lines) > 1 else None)
    axes.axvline(trained, color=GREY, linestyle="--", linewidth=1, label=f"trained at {trained}")
    told = plain.get("windows")
    title = f"by position, windows of {shown}" + (f"\n{told}" if told else "")
    axes.set(xlabel="place in the window", ylabel=metric.replace("/", " "), title=title)
    finish(axes)


def _means(values: Sequence[float | None], counts: Sequence[int], trained: int) -> Iterator[Point]:
    """Means over the tokens of runs of places, none of which joins places of training with those past it."""
    found = enumerate(zip(values, counts, strict=True))
    places = [(place, value, count) for place, (value, count) in found if value is not None]
    run = max(1, len(places) // BINS)
    for side in ([one for one in places if one[0] < trained], [one for one in places if one[0] >= trained]):
        for start in range(0, len(side), run):
            each = side[start : start + run]
            asked = sum(count for *_, count in each)
            yield sum(place for place, *_ in each) / len(each), sum(value * count for _, value, count in each) / asked


def labelled(axes: Axes, points: Sequence[Point]) -> None:
    """Each point with its value."""
    for place, value in points:
        axes.annotate(f"{value:.3f}", (place, value), textcoords="offset points", xytext=(4, 6), fontsize=9, bbox=CLEAR)


def finish(axes: Axes) -> None:
    axes.margins(x=0.08, y=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
