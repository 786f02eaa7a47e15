"""The figure of an evaluation, as a PNG file in the run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.config import Recipe
from zoo.diagnostics.training_curves import as_swept

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 24  # of places, so that each point is a mean of many tokens
BLUE, GREY = "#2b6cb0", "#999999"
COLOURS = (BLUE, "#c05621", "#2f855a", "#6b46c1", "#b83280", "#744210")
CLEAR = {
    "facecolor": "white",
    "edgecolor": "none",
    "pad": 0.5,
    "alpha": 0.8,
}  # where a label crosses the curve

Point = tuple[float, float]


def by_position(axes: Axes, result: Mapping[str, Any], key: str, metric: str, trained: int) -> None:
    """What is found by place in the longest windows that the model followed, as it is and by each rule."""
    longest = max(
        (int(size) for size, found in result["lengths"].items() if key in found),
        default=result["size"],
    )
    plain = result["lengths"].get(str(longest), result if as_swept(result, "lengths") else {})
    rules = {rule: sizes for rule, sizes in result.get("rules", {}).items() if rule != "none"}
    most = max(
        (int(size) for sizes in rules.values() for size, one in sizes.items() if key in one),
        default=longest,
    )
    shown = max(longest, most)  # a rule may follow where the model as it is does not
    lines = {"as it is" if shown == longest else f"as it is, windows of {longest}": plain}
    lines |= {rule: sizes.get(str(shown), {}) for rule, sizes in rules.items()}
    for (name, found), colour in zip(lines.items(), COLOURS * len(lines), strict=False):
        if points := [*_means(found.get(key, ()), found.get("asked", ()), trained)]:
            axes.plot(
                *zip(*points, strict=True), color=colour, label=name if len(lines) > 1 else None
            )
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
    for side in (
        [one for one in places if one[0] < trained],
        [one for one in places if one[0] >= trained],
    ):
        for start in range(0, len(side), run):
            each = side[start : start + run]
            asked = sum(count for *_, count in each)
            yield (
                sum(place for place, *_ in each) / len(each),
                sum(value * count for _, value, count in each) / asked,
            )


def labelled(axes: Axes, points: Sequence[Point]) -> None:
    """Each point with its value."""
    for place, value in points:
        axes.annotate(
            f"{value:.3f}",
            (place, value),
            textcoords="offset points",
            xytext=(4, 6),
            fontsize=9,
            bbox=CLEAR,
        )


def finish(axes: Axes) -> None:
    axes.margins(x=0.08, y=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


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


def _panels(
    recipe: Recipe, result: Result, kind: str | None, trained: int | str
) -> list[Callable[[Axes], None]]:
    panels: list[Callable[[Axes], None]] = []
    metrics = {"resolutions": (ACCURACY,), "lengths": (LOSS, ACCURACY), None: ()}[kind]
    for metric in metrics:
        assert kind is not None
        panels.append(
            partial(
                _by_size,
                title=recipe.name,
                result=result,
                kind=kind,
                metric=metric,
                trained=trained,
            )
        )
        key = "positions" if metric == LOSS else "accuracies"
        if kind == "lengths" and key in result:  # a text has losses by place, a class has none
            panels.append(
                partial(by_position, result=result, key=key, metric=metric, trained=int(trained))
            )
    if "variants" in result:
        panels.append(partial(_bars, title=recipe.name, result=result))
    return panels


def _by_size(
    axes: Axes, title: str, result: Result, kind: str, metric: str, trained: int | str
) -> None:
    """A curve of what the model is, and one for each rule from the size of training on.

    Sizes whose sides are not equal have no order: then all stand side by side.
    """
    own = {str(result["size"]): result["metrics"]} if as_swept(result, kind) else {}
    plain = {**own, **result[kind]}
    plain = {
        size: plain[size][metric] for size in sorted(plain, key=_order) if metric in plain[size]
    }
    lines = {"as it is": plain}
    for rule, sizes in result.get("rules", {}).items():
        found = {
            size: sizes[size][metric] for size in sorted(sizes, key=_order) if metric in sizes[size]
        }
        if found and rule != "none":
            start = {str(trained): plain[str(trained)]} if str(trained) in plain else {}
            lines[rule] = start | found
    names = sorted({size for points in lines.values() for size in points}, key=_order)
    parted = any("x" in size for size in names)
    at = {size: float(number) if parted else float(size) for number, size in enumerate(names)}
    for (name, points), colour in zip(lines.items(), COLOURS * len(lines), strict=False):
        places = [at[size] for size in points]
        style, label = "none" if parted else "solid", name if len(lines) > 1 else None
        axes.plot(
            places, [*points.values()], marker="o", linestyle=style, color=colour, label=label
        )
        if len(lines) == 1:
            labelled(axes, [(at[size], value) for size, value in points.items()])
    values = [value for points in lines.values() for value in points.values()]
    if not values:
        return
    room = (
        max(0.0, 0.1 * max(values) - (max(values) - min(values))) / 2
    )  # so that a thousandth is no cliff
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
    drawn = axes.bar(
        [*values], [*values.values()], color=[GREY, *[BLUE] * (len(values) - 1)], width=0.6
    )
    axes.bar_label(drawn, fmt="%.4f", fontsize=9)
    axes.set(ylabel=metric.replace("/", " "), title=f"{title}: variants of the data")
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def _order(size: str) -> tuple[int, int]:
    """By the number of tokens or pixels, then by height."""
    sides = [int(side) for side in size.split("x")]
    return (sides[0] * sides[1], sides[0]) if len(sides) > 1 else (sides[0] ** 2, sides[0])


def table(result: Mapping[str, Any]) -> str:
    """A row for the data as they are, for each size, rule and variant; then what was refused, and how it was measured."""
    names = list(result["metrics"])
    found = dict(_measured(result))
    rows = [("", *names), ("test", *(f"{result['metrics'][name]:.4f}" for name in names))]
    rows += [
        (title, *(f"{one[name]:.4f}" for name in names))
        for title, one in found.items()
        if "refused" not in one
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    lines += [
        f"{title}: refused: {one['refused']}" for title, one in found.items() if "refused" in one
    ]
    lines.append(f"{result['count']} samples, {result['checkpoint']}")
    lines += _protocol(result, found)
    if "figure" in result:
        lines.append(f"figure: {result['figure']}")
    return "\n".join(lines)


def _measured(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All but the data as they are, titled. What a size gives by no rule stands once."""
    sized = result.get("resolutions", {}) | result.get("lengths", {})
    for name, one in sized.items():
        yield _title(result, name), one
        for rule, sizes in result.get("rules", {}).items():
            if name in sizes and sizes[name] is not one:
                yield f"{_title(result, name)}, {rule}", sizes[name]
    yield from result.get("variants", {}).items()


def _title(result: Mapping[str, Any], name: str) -> str:
    """24 x 24, 16 x 32, 256 tokens."""
    if name in result.get("lengths", {}):
        return f"{name} tokens"
    return " x ".join(name.split("x")) if "x" in name else f"{name} x {name}"


def _protocol(result: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """How windows were cut, and how images were brought to their size."""
    cut = {
        title: one["windows"]
        for title, one in {"test": result, **found}.items()
        if "windows" in one
    }
    ways = list(dict.fromkeys(cut.values()))
    if len(ways) == 1:
        yield f"windows: {ways[0]}"
    else:
        yield from (
            f"windows {way}: {', '.join(title for title in cut if cut[title] == way)}"
            for way in ways
        )
    if "shown" in result:
        yield f"images: {result['shown']}"
