"""The result of an evaluation as text, and as a figure: metrics by size, position, variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from zoo.config import Recipe
from zoo.packages import explain_imports
from zoo.reporting.panel import Bars, Line, LineChart, Panel, Scale
from zoo.reporting.tables import format_table

BINS = 24  # of positions, so that each point is a mean of many tokens
X_NAMES = {"resolutions": "resolution in pixels", "lengths": "length of windows in tokens"}
LOSS, ACCURACY = "test/loss", "test/accuracy"
WIDTH, HEIGHT = 380, 240  # in pixels

Result = Mapping[str, Any]
Point = tuple[float, float]


def table(result: Mapping[str, Any]) -> str:
    """Return a row for the data of training and for each condition, then what was refused."""
    names = list(result["metrics"])
    found = dict(_list_conditions(result))
    rows = [("", *names), ("test", *(f"{result['metrics'][name]:.4f}" for name in names))]
    rows += [
        (title, *(f"{one[name]:.4f}" for name in names))
        for title, one in found.items()
        if "refused" not in one
    ]
    lines = [format_table(rows)]
    lines += [
        f"{title}: refused: {one['refused']}" for title, one in found.items() if "refused" in one
    ]
    lines.append(f"{result['count']} samples, {result['checkpoint']}")
    lines += _protocol(result, found)
    if "figure" in result:
        lines.append(f"figure: {result['figure']}")
    return "\n".join(lines)


def _list_conditions(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield title and metrics of each condition; a size without extrapolation appears once."""
    sized = result.get("resolutions", {}) | result.get("lengths", {})
    for name, one in sized.items():
        yield _title(result, name), one
        for method, sizes in result.get("extrapolation", {}).items():
            if name in sizes and sizes[name] is not one:
                yield f"{_title(result, name)}, {method}", sizes[name]
    yield from result.get("data_variants", {}).items()


def _title(result: Mapping[str, Any], name: str) -> str:
    """Return the title of a size: 24 x 24, 16 x 32, 256 tokens."""
    if name in result.get("lengths", {}):
        return f"{name} tokens"
    return " x ".join(name.split("x")) if "x" in name else f"{name} x {name}"


def _protocol(result: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield how texts were cut into windows, and how images were resized."""
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


def save_figure(recipe: Recipe, result: Result, run: Path, trained: int | str) -> Path:
    """Draw the result of an evaluation to a PNG file in the run directory.

    Args:
        recipe: Recipe of the model.
        result: What `zoo eval --json` prints.
        run: The run directory.
        trained: Size of training.

    Returns:
        Path of the file.
    """
    with explain_imports():
        from zoo.reporting import charts, render
        from zoo.reporting.axes import Style

    kind = next((kind for kind in X_NAMES if kind in result), None)
    panels = build_panels(recipe.name, result, kind, trained)
    path = run / f"{kind or 'data_variants'}.png"
    style = Style(width=WIDTH, height=HEIGHT)
    render.save_figure(charts.draw_panels(panels, style), path)
    return path


def build_panels(name: str, result: Result, kind: str | None, trained: int | str) -> list[Panel]:
    """Return loss and accuracy against size, of a text also by position; then data variants."""
    panels: list[Panel] = []
    metrics = {"resolutions": (ACCURACY,), "lengths": (LOSS, ACCURACY), None: ()}[kind]
    for metric in metrics:
        assert kind is not None
        panels.append(plot_by_size(name, result, kind, metric, trained))
        key = "position_losses" if metric == LOSS else "position_accuracies"
        if kind == "lengths" and key in result:  # only texts have a loss at each position
            panels.append(plot_by_position(result, key, metric, int(trained)))
    if "data_variants" in result:
        panels.append(plot_variants(name, result))
    return panels


def plot_by_size(
    title: str, result: Result, kind: str, metric: str, trained: int | str
) -> LineChart:
    """Return a line of the model as it is, and one for each extrapolation method.

    Sizes whose sides are not equal have no order: then all stand side by side.
    """
    lines = _collect_sizes(result, kind, metric, trained)
    names = sorted(set(chain.from_iterable(lines.values())), key=_order)
    apart = any("x" in size for size in names)
    at = {size: float(number) if apart else float(size) for number, size in enumerate(names)}
    ends = (min(at.values(), default=0.0), max(at.values(), default=1.0))
    scale = Scale(
        *ends,
        log=kind == "lengths",
        ticks=tuple(at.values()),
        labels={number: size for size, number in at.items()},
    )
    ordered = not apart and "x" not in str(trained)
    position = float(trained) if ordered else at.get(str(trained))
    return LineChart(
        title=title,
        x=X_NAMES[kind],
        y=metric.replace("/", " "),
        lines=tuple(
            _build_line(name, [(at[size], value) for size, value in points.items()])
            for name, points in lines.items()
        ),
        x_scale=scale.widen(0.06) if ends[0] < ends[1] else Scale(ends[0] / 2, ends[0] * 2 + 1),
        rule=None if position is None else (position, f"trained at {trained}"),
        connected=not apart,
        shows_values=len(lines) == 1,
    )


def plot_by_position(result: Result, key: str, metric: str, trained: int) -> LineChart:
    """Return a metric by position in the longest windows, without and with extrapolation."""
    sizes = [int(size) for size, found in result["lengths"].items() if key in found]
    longest = max(sizes, default=result["size"])
    own = result if has_equal_windows(result, "lengths") else {}
    plain = result["lengths"].get(str(longest), own)
    methods = {
        method: sizes
        for method, sizes in result.get("extrapolation", {}).items()
        if method != "none"
    }
    found = chain.from_iterable(one.items() for one in methods.values())
    most = max((int(size) for size, one in found if key in one), default=longest)
    shown = max(longest, most)  # a method may follow where the model as it is does not
    lines = {"as it is" if shown == longest else f"as it is, windows of {longest}": plain}
    lines |= {method: sizes.get(str(shown), {}) for method, sizes in methods.items()}
    points = {
        name: [*_average(one.get(key, ()), one.get("position_counts", ()), trained)]
        for name, one in lines.items()
    }
    windows = f", {plain['windows']}" if plain.get("windows") else ""
    return LineChart(
        title=f"by position, windows of {shown}{windows}",
        x="position in the window",
        y=metric.replace("/", " "),
        lines=tuple(_build_line(name, found) for name, found in points.items() if found),
        rule=(trained, f"trained at {trained}"),
    )


def plot_variants(title: str, result: Result) -> Bars:
    """Return a bar for the data as they are and for each of their variants."""
    metric = ACCURACY if ACCURACY in result["metrics"] else next(iter(result["metrics"]))
    found = {"as in training": result["metrics"], **result["data_variants"]}
    values = {name: one[metric] for name, one in found.items() if metric in one}
    name = metric.replace("/", " ")
    return Bars(title=f"{title}: variants of the data", x="variant", y=name, values=values)


def _collect_sizes(
    result: Result, kind: str, metric: str, trained: int | str
) -> dict[str, dict[str, float]]:
    """Return {line: {size: value}}, sizes in their order; a method starts at the training size."""

    def pick(sizes: Mapping[str, Any]) -> dict[str, float]:
        ordered = sorted(sizes, key=_order)
        return {size: sizes[size][metric] for size in ordered if metric in sizes[size]}

    own = {str(result["size"]): result["metrics"]} if has_equal_windows(result, kind) else {}
    plain = pick({**own, **result[kind]})
    lines = {"as it is": plain}
    start = {str(trained): plain[str(trained)]} if str(trained) in plain else {}
    for method, sizes in result.get("extrapolation", {}).items():
        found = pick(sizes)
        if found and method != "none":
            lines[method] = start | found
    return lines


def _build_line(name: str, points: Sequence[Point]) -> Line:
    x, y = zip(*points, strict=True) if points else ((), ())
    return Line(name, torch.tensor(x), torch.tensor(y, dtype=torch.float64))


def _average(
    values: Sequence[float | None], counts: Sequence[int], trained: int
) -> Iterator[Point]:
    """Yield means over runs of positions, none of which joins trained positions with others."""
    found = enumerate(zip(values, counts, strict=True))
    known = [(position, value, count) for position, (value, count) in found if value is not None]
    run = max(1, len(known) // BINS)
    within = [one for one in known if one[0] < trained]
    beyond = [one for one in known if one[0] >= trained]
    for side in (within, beyond):
        for start in range(0, len(side), run):
            part = side[start : start + run]
            tokens = sum(count for *_, count in part)
            position = sum(position for position, *_ in part) / len(part)
            yield position, sum(value * count for _, value, count in part) / tokens


def _order(size: str) -> tuple[int, int]:
    """Order sizes by the number of tokens or pixels, then by height."""
    sides = [int(side) for side in size.split("x")]
    return (sides[0] * sides[1], sides[0]) if len(sides) > 1 else (sides[0] ** 2, sides[0])


def has_equal_windows(result: Mapping[str, Any], kind: str) -> bool:
    """Tell whether the training size was cut into windows as all other sizes were."""
    other_sizes = [
        *result[kind].values(),
        *(one for sizes in result.get("extrapolation", {}).values() for one in sizes.values()),
    ]
    return all(
        one.get("windows") == result.get("windows") for one in other_sizes if "refused" not in one
    )
