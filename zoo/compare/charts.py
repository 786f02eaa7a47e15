"""Curves and points of a comparison, for its page and its figures: by size, by place in the window, in training, by cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from statistics import fmean

import torch
from torch import Tensor

from zoo.compare.ranking import ranking, values
from zoo.compare.results import TRAINED, Cell, Comparison, Variant
from zoo.compare.statistics import estimate
from zoo.compare.text import capital, measured, named, size
from zoo.diagnostics.drawing.axes import colour
from zoo.diagnostics.drawing.curves import Line, upward
from zoo.diagnostics.drawing.scales import Scale
from zoo.reporting.spec import Panel, Points

BINS = 48  # of places, so that each point is a mean of many tokens
SCATTERED = (
    8  # no curve where fewer than one place in so many has a loss, as when only an answer counts
)
FEW = 8  # lines that are told apart by the name of their colour


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines under the names of a panel's axes; `mark` is where training ended."""

    panel: Panel
    lines: tuple[Line, ...]
    across: Scale | None = None
    up: Scale | None = None
    mark: tuple[float, str] | None = None


def ordered(comparison: Comparison) -> tuple[Variant, ...]:
    """As they are listed; where these are many, the best at the last place at the end, which draws it darkest."""
    if len(comparison.variants) <= FEW or len(comparison.axes) > 1:
        return comparison.variants
    return tuple(one.variant for one in reversed(ranking(comparison, comparison.places[-1])))


def grouped(comparison: Comparison, variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    """Variants by their value of the first axis where there are several axes, else all under no name; their order is kept."""
    key = comparison.axes[0].key if len(comparison.axes) > 1 else None
    groups: dict[str, list[Variant]] = {}
    for variant in variants:
        groups.setdefault(variant.values.get(key, "") if key else "", []).append(variant)
    return groups


def by_size(comparison: Comparison) -> tuple[Chart, ...]:
    """The measure against resolution or length, with its interval; nothing where there are fewer than two sizes.

    Of two places of one size, as where windows slide, the one that was measured as the others are.
    """
    places = {
        found: place
        for place in comparison.places
        if (found := size(comparison, place)) is not None
    }
    sizes = sorted(places.items())
    if len(sizes) < 2:
        return ()
    images = "resolutions" in comparison.kinds.values()
    title = "resolution, pixels" if images else "length of windows, tokens"
    across = Scale(
        sizes[0][0], sizes[-1][0], log=not images, marks=tuple(found for found, _ in sizes)
    )
    panel = Panel(
        title=f"{capital(measured(comparison))} by {title.partition(',')[0]}",
        x=title,
        y=measured(comparison),
    )
    charts = _charts(comparison, panel, lambda variant: _by_size(comparison, variant, sizes))
    return tuple(replace(chart, across=across, mark=_trained(comparison)) for chart in charts)


def by_position(comparison: Comparison) -> tuple[Chart, ...]:
    """For each place that has them, losses by place in the window, means of seeds and of neighbouring tokens."""
    return tuple(chart for place in comparison.places for chart in _positions(comparison, place))


def in_training(comparison: Comparison) -> tuple[Chart, ...]:
    """What is monitored against steps: the mean of seeds, and the band from the lowest to the highest."""
    return _charts(
        comparison, Panel(title="In training", x="step", y="validation, as monitored"), _curve
    )


def _charts(
    comparison: Comparison, panel: Panel, draw: Callable[[Variant], Line | None]
) -> tuple[Chart, ...]:
    """A line for each variant that has one, a chart for each group, all on one scale; bands where these can be told apart."""
    groups = grouped(comparison, ordered(comparison))
    lines = {
        variant.name: replace(
            line, look=colour(number, len(group)), band=line.band if len(group) <= FEW else None
        )
        for group in groups.values()
        for number, variant in enumerate(group)
        if (line := draw(variant))
    }
    found = {
        title: tuple(lines[one.name] for one in group if one.name in lines)
        for title, group in groups.items()
    }
    up = upward(list(lines.values())) if lines else None
    return tuple(
        Chart(panel=replace(panel, title=title) if len(groups) > 1 else panel, lines=drawn, up=up)
        for title, drawn in found.items()
        if drawn
    )


def _trained(comparison: Comparison) -> tuple[float, str] | None:
    trained = size(comparison, TRAINED)
    return None if trained is None else (trained, "training")


COSTS: Mapping[str, tuple[str, Callable[[Cell], float | None]]] = {
    "time of a step": ("ms, median", lambda cell: cell.step_seconds and cell.step_seconds * 1e3),
    "memory": ("MiB, the most", lambda cell: cell.memory and cell.memory / 2**20),
    "parameters": ("thousands", lambda cell: cell.parameters and cell.parameters / 1e3),
}


def by_cost(comparison: Comparison, place: str = TRAINED) -> tuple[Points, ...]:
    """The measure against each cost in which variants differ, a point for each variant."""
    return tuple(
        _points(comparison, place, title) for title in COSTS if len(_costs(comparison, title)) > 1
    )


def mean_of(variant: Variant, pick: Callable[[Cell], float | None]) -> float | None:
    """The mean of what is known of a variant's cells."""
    found = [one for cell in variant.cells if (one := pick(cell)) is not None and isfinite(one)]
    return fmean(found) if found else None


def _costs(comparison: Comparison, title: str) -> set[float]:
    found = (mean_of(variant, COSTS[title][1]) for variant in comparison.variants)
    return {one for one in found if one is not None}


def _points(comparison: Comparison, place: str, title: str) -> Points:
    unit, pick = COSTS[title]
    groups = {}
    for variant in ordered(comparison):
        found, cost = values(variant, place, comparison.measure), mean_of(variant, pick)
        reached = fmean(found.values()) if found else None
        groups[variant.name] = (_numbers([cost]), _numbers([reached]))
    y = f"{measured(comparison)}, {named(comparison, place)}"
    return Points(title=f"{title.capitalize()}", x=f"{title}, {unit}", y=y, groups=groups)


def _by_size(
    comparison: Comparison, variant: Variant, sizes: Sequence[tuple[float, str]]
) -> Line | None:
    found = [tuple(values(variant, place, comparison.measure).values()) for _, place in sizes]
    means = [estimate(one, comparison.bounds) if one else None for one in found]
    if not any(means):
        return None
    mean = _numbers([one.mean if one else None for one in means])
    low, high = (
        _numbers([getattr(one, end) if one else None for one in means]) for end in ("low", "high")
    )
    places = torch.tensor([size for size, _ in sizes])
    return Line(variant.name, places, mean, (low, high) if low.isfinite().any() else None)


def _curve(variant: Variant) -> Line | None:
    found: dict[int, list[float]] = {}
    for cell in variant.cells:
        for step, value in cell.curve:
            found.setdefault(step, []).append(value if isfinite(value) else nan)
    if not found:
        return None
    steps = sorted(found)
    mean, low, high = (
        _numbers([pick(found[step]) for step in steps]) for pick in (fmean, min, max)
    )
    return Line(
        variant.name, torch.tensor(steps), mean, (low, high) if len(variant.cells) > 1 else None
    )


def _positions(comparison: Comparison, place: str) -> tuple[Chart, ...]:
    def line(variant: Variant) -> Line | None:
        rows = [cell.positions[place] for cell in variant.cells if cell.positions.get(place)]
        if all((len(row) - row.count(None)) * SCATTERED < len(row) for row in rows):
            return None
        x, y = zip(*_binned(rows), strict=True)
        return Line(variant.name, torch.tensor(x), _numbers(y))

    panel = Panel(title=f"Windows of {named(comparison, place)}", x="place in the window", y="loss")
    charts = _charts(comparison, panel, line)
    titles = (
        panel.title if one.panel is panel else f"{one.panel.title}, {named(comparison, place)}"
        for one in charts
    )
    mark = None if place == TRAINED else _trained(comparison)
    return tuple(
        replace(one, panel=replace(panel, title=title), mark=mark)
        for one, title in zip(charts, titles, strict=True)
    )


def _binned(rows: Sequence[Sequence[float | None]]) -> Iterator[tuple[float, float]]:
    """(place, mean) of runs of places, over all seeds."""
    longest = max(map(len, rows))
    run = max(1, longest // BINS)
    for start in range(0, longest, run):
        found = [
            one
            for row in rows
            for one in row[start : start + run]
            if one is not None and isfinite(one)
        ]
        yield start + (min(run, longest - start) - 1) / 2, fmean(found) if found else nan


def _numbers(found: Sequence[float | None]) -> Tensor:
    return torch.tensor([nan if one is None else one for one in found], dtype=torch.float64)
