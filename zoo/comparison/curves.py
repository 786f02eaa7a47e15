"""Charts of a comparison, for its page and its figures.

By size, by position, in training, by cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan
from statistics import fmean

import torch
from torch import Tensor

from zoo.comparison.ranking import collect_values, estimate_variant, measure_compute, rank_variants
from zoo.comparison.results import Comparison, ComparisonCell, Variant
from zoo.comparison.statistics import LEVEL
from zoo.comparison.text import capitalize, format_measure
from zoo.reporting.panel import Line, LineChart, Panel, Points, Scale, fit_height
from zoo.run.conditions import Condition

BINS = 48  # of positions, so that each point is a mean of many tokens
SPARSE = 8  # no curve if fewer than one position in so many has a loss, as if only an answer counts
MULTIPLES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
"""SI multiples and their prefixes, from the largest."""
FEW_LINES = 8  # lines whose colours have names
FEW_BANDS = 4  # bands over each other that can be told apart
NOTABLE_COST = 0.02  # share of the largest cost
TRAINING_RULE = "training"
"""The name of the dotted line at the training size."""
BANDS = {
    "sizes": f"{LEVEL * 100:g} % intervals over seeds",
    "training": "from the lowest to the highest seed",
}
"""What the bands of charts are."""


def order_for_drawing(comparison: Comparison) -> tuple[Variant, ...]:
    """Return the variants as listed; many of them from last to first under the last condition.

    The colours of many lie on a ramp, whose darkest is that of the last line.
    """
    if len(comparison.variants) <= FEW_LINES or len(comparison.axes) > 1:
        return comparison.variants
    return tuple(
        standing.variant
        for standing in reversed(rank_variants(comparison, comparison.conditions[-1]))
    )


def group_by_first_axis(
    comparison: Comparison, variants: Sequence[Variant]
) -> dict[str, list[Variant]]:
    """Group variants by their value of the first axis if there are several axes, else under ""."""
    key = comparison.axes[0].key if len(comparison.axes) > 1 else None
    groups: dict[str, list[Variant]] = {}
    for variant in variants:
        groups.setdefault(variant.values.get(key, "") if key else "", []).append(variant)
    return groups


def find_side(condition: Condition) -> int | None:
    """Return the length, or the side of a square image; None if the size is not one number."""
    sides = set(condition.size or ())
    return sides.pop() if len(sides) == 1 else None


def by_size(comparison: Comparison) -> tuple[LineChart, ...]:
    """Return the metric against resolution or length, with its interval.

    There is a chart for the unchanged models and one for each extrapolation method, which shows the
    unchanged models at sizes that need no extrapolation. Nothing is returned for fewer than
    two sizes. Of two conditions of one size, as where windows slide, the one that was measured as
    the others counts.
    """
    plain = {
        size: condition
        for condition in comparison.conditions
        if condition.kind in ("trained", "size") and (size := find_side(condition)) is not None
    }
    if len(plain) < 2:
        return ()
    charts = [*_charts_by_size(comparison, plain, "")]
    for method in comparison.extrapolation_methods:
        measured = {
            size: condition
            for condition in comparison.conditions
            if condition.method == method and (size := find_side(condition)) in plain
        }
        charts += _charts_by_size(comparison, plain | measured, f", by {method}")
    # one scale for all, as they are to be compared
    shared = fit_height(_list_heights(line for chart in charts for line in chart.lines))
    return tuple(replace(chart, y_scale=shared) for chart in charts)


def by_position(comparison: Comparison) -> tuple[LineChart, ...]:
    """Return losses by position in the window, means of seeds and of neighbouring tokens.

    There is a chart for each condition that has them.
    """
    charts = (_charts_by_position(comparison, condition) for condition in comparison.conditions)
    return tuple(chart for condition_charts in charts for chart in condition_charts)


def in_training(comparison: Comparison) -> tuple[LineChart, ...]:
    """Return the monitored metric against steps: the mean of seeds, and the band they lie in."""
    y = comparison.monitor_title
    return _fill(
        comparison, LineChart(title="In training", x="step", y=y, lines=()), _line_of_steps
    )


def in_training_compute(comparison: Comparison, unit: str = "seconds") -> tuple[LineChart, ...]:
    """Return the monitored metric against compute, for variants whose steps differ in it.

    Compute is steps times the variant's mean of a step, so that its seeds share their x.

    Args:
        comparison: The comparison.
        unit: seconds or FLOPs.
    """
    costs = {
        variant.name: measure_compute(comparison, variant, unit) for variant in comparison.variants
    }
    # where a step costs all the same, the chart by steps shows the same lines
    if len({cost for cost in costs.values() if cost}) < 2:
        return ()

    def draw(variant: Variant) -> Line | None:
        line, step = _line_of_steps(variant), costs[variant.name]
        return replace(line, x=line.x * step) if line and step else None

    title = "time" if unit == "seconds" else unit
    y = comparison.monitor_title
    chart = LineChart(title=f"In training, by {title}", x=unit, y=y, lines=())
    filled = _fill(comparison, chart, draw)
    return filled if unit == "seconds" else _shorten_counts(filled)


def _shorten_counts(charts: Sequence[LineChart]) -> tuple[LineChart, ...]:
    """Return charts whose horizontal axis counts in an SI multiple of its unit: 27 GFLOPs."""
    longest = max((float(line.x.max()) for chart in charts for line in chart.lines), default=0.0)
    factor, prefix = next(((f, p) for f, p in MULTIPLES if longest >= f), (1.0, ""))
    return tuple(
        replace(
            chart,
            x=f"{prefix}{chart.x}",
            lines=tuple(replace(line, x=line.x / factor) for line in chart.lines),
        )
        for chart in charts
    )


COSTS: Mapping[str, tuple[str, Callable[[ComparisonCell], float | None]]] = {
    "time of a step": ("ms, median", lambda cell: cell.step_seconds and cell.step_seconds * 1e3),
    "memory": ("MiB, peak", lambda cell: cell.peak_memory and cell.peak_memory / 2**20),
    "parameters": ("thousands", lambda cell: cell.parameters and cell.parameters / 1e3),
    "operations": ("MFLOPs, forward", lambda cell: cell.flops and cell.flops / 1e6),
}


def by_cost(comparison: Comparison) -> tuple[Points, ...]:
    """Return the metric against each cost in which variants differ, a point for each variant.

    The metric is that on the test data of the recipe. Costs start at 0; one that differs by less
    than `NOTABLE_COST` between all variants is left out.
    """
    return tuple(
        _points_by_cost(comparison, comparison.trained, title)
        for title in COSTS
        if _differs_notably(comparison, title)
    )


def explain_charts(comparison: Comparison, name: str, panels: Sequence[Panel]) -> str:
    """Explain charts by what they draw: means or single seeds, bands, and the dotted line.

    Args:
        comparison: The comparison.
        name: What the charts are: sizes, positions, training or costs.
        panels: The charts.
    """
    counts = {len(variant.cells) for variant in comparison.variants}
    parts = ["means over seeds" if max(counts, default=0) > 1 else "one seed each"]
    charts = [panel for panel in panels if isinstance(panel, LineChart)]
    if any(line.band for chart in charts for line in chart.lines):
        parts.append(f"bands: {BANDS[name]}")
    if name == "positions":
        parts.append("means over neighbouring tokens")
    if name == "costs":
        parts.append(
            f"{comparison.trained.describe()}, against what differs between variants by at least "
            f"{NOTABLE_COST * 100:g} %"
        )
    if name == "sizes" and all(len(line.x) <= 2 for chart in charts for line in chart.lines):
        parts.append("dashed: nothing is measured between the sizes")
    if any(chart.rule and chart.rule[1] == TRAINING_RULE for chart in charts):
        parts.append("dotted: the training size")
    return "; ".join(parts)


def mean_of(variant: Variant, pick: Callable[[ComparisonCell], float | None]) -> float | None:
    """Return the mean of what is known of a variant's cells."""
    values = [
        value for cell in variant.cells if (value := pick(cell)) is not None and isfinite(value)
    ]
    return fmean(values) if values else None


def _fill(
    comparison: Comparison, chart: LineChart, draw: Callable[[Variant], Line | None]
) -> tuple[LineChart, ...]:
    """Return a chart for each group, with a line for each variant that has one, on one scale.

    Bands are left out where they could not be distinguished.
    """
    groups = group_by_first_axis(comparison, order_for_drawing(comparison))
    lines: dict[str, Line] = {}
    for group in groups.values():
        for number, variant in enumerate(group):
            if line := draw(variant):
                band = line.band if len(group) <= FEW_BANDS else None
                lines[variant.name] = replace(line, colour=number, shades=len(group), band=band)

    # only once all lines are known, since the charts share a scale
    heights = _list_heights(lines.values())
    filled = []
    for title, group in groups.items():
        drawn = tuple(lines[member.name] for member in group if member.name in lines)
        if drawn:
            shown = chart.title if len(groups) == 1 else title
            filled.append(replace(chart, title=shown, lines=drawn, y_scale=fit_height(heights)))
    return tuple(filled)


def _list_heights(lines: Iterable[Line]) -> list[Tensor]:
    return [part for line in lines for part in (line.y, *(line.band or ()))]


def _find_trained(comparison: Comparison) -> tuple[float, str] | None:
    trained = find_side(comparison.trained)
    return None if trained is None else (trained, TRAINING_RULE)


def _differs_notably(comparison: Comparison, title: str) -> bool:
    means = (mean_of(variant, COSTS[title][1]) for variant in comparison.variants)
    costs = [mean for mean in means if mean is not None]
    return bool(costs) and max(costs) - min(costs) >= NOTABLE_COST * max(costs) > 0


def _points_by_cost(comparison: Comparison, condition: Condition, title: str) -> Points:
    unit, pick = COSTS[title]
    groups = {}
    for variant in order_for_drawing(comparison):
        by_seed, cost = (
            collect_values(variant, condition, comparison.measure),
            mean_of(variant, pick),
        )
        reached = fmean(by_seed.values()) if by_seed else None
        groups[variant.name] = (_to_tensor([cost]), _to_tensor([reached]))
    y = f"{format_measure(comparison)}, {condition.describe()}"
    costs = [float(x) for x, _ in groups.values() if x.isfinite().all()]
    return Points(
        title=title.capitalize(),
        x=f"{title}, {unit}",
        y=y,
        groups=groups,
        # from 0, so that one percent more looks like one percent more
        x_scale=Scale(0.0, 1.04 * max(costs)),
        y_scale=fit_height(y for _, y in groups.values()),
    )


def _charts_by_size(
    comparison: Comparison, conditions: Mapping[int, Condition], suffix: str
) -> tuple[LineChart, ...]:
    sizes = sorted(conditions.items())
    is_image = any(condition.unit == "pixels" for condition in conditions.values())
    noun, unit = ("resolution", "pixels") if is_image else ("length of windows", "tokens")
    title = f"{capitalize(format_measure(comparison))} by {noun}"
    chart = LineChart(
        title=f"{title}{suffix}",
        x=f"{noun}, {unit}",
        y=format_measure(comparison),
        lines=(),
        x_scale=Scale(
            # lengths are multiplied from one to the next, sides of images grow evenly
            sizes[0][0],
            sizes[-1][0],
            log=not is_image,
            ticks=tuple(size for size, _ in sizes),
        ),
        rule=_find_trained(comparison),
    )
    filled = _fill(comparison, chart, lambda variant: _line_by_size(comparison, variant, sizes))
    return tuple(
        panel if panel.title == chart.title else replace(panel, title=f"{panel.title}{suffix}")
        for panel in filled
    )


def _line_by_size(
    comparison: Comparison, variant: Variant, sizes: Sequence[tuple[int, Condition]]
) -> Line | None:
    values = [collect_values(variant, condition, comparison.measure) for _, condition in sizes]
    means = [estimate_variant(comparison, variant, by_seed)[0] for by_seed in values]
    if not any(means):
        return None
    mean = _to_tensor([estimate.mean if estimate else None for estimate in means])
    low = _to_tensor([estimate.low if estimate else None for estimate in means])
    high = _to_tensor([estimate.high if estimate else None for estimate in means])
    x = torch.tensor([size for size, _ in sizes])
    return Line(variant.name, x, mean, (low, high) if low.isfinite().any() else None)


def _line_of_steps(variant: Variant) -> Line | None:
    values_by_step: dict[int, list[float]] = {}
    for cell in variant.cells:
        for step, value in cell.curve:
            # a seed that diverged makes the mean NaN: a mean of the others would hide it
            plotted = nan if value is None or not isfinite(value) else value
            values_by_step.setdefault(step, []).append(plotted)
    if not values_by_step:
        return None
    steps = sorted(values_by_step)
    mean, low, high = (
        _to_tensor([pick(values_by_step[step]) for step in steps]) for pick in (fmean, min, max)
    )
    band = (low, high) if len(variant.cells) > 1 else None
    return Line(variant.name, torch.tensor(steps), mean, band)


def _charts_by_position(comparison: Comparison, condition: Condition) -> tuple[LineChart, ...]:
    def line(variant: Variant) -> Line | None:
        by_cell = (cell.find(condition).list_position_losses() for cell in variant.cells)
        rows = [losses for losses in by_cell if losses]
        # one answer at the end of a window is a point, not a curve
        if all((len(row) - row.count(None)) * SPARSE < len(row) for row in rows):
            return None
        x, y = zip(*_bin(rows), strict=True)
        return Line(variant.name, torch.tensor(x), _to_tensor(y))

    name = condition.describe()
    chart = LineChart(
        title=f"Windows of {name}",
        x="position in the window",
        y="loss",
        lines=(),
        rule=None if condition == comparison.trained else _find_trained(comparison),
    )
    filled = _fill(comparison, chart, line)
    return tuple(
        panel if panel.title == chart.title else replace(panel, title=f"{panel.title}, {name}")
        for panel in filled
    )


def _bin(rows: Sequence[Sequence[float | None]]) -> list[tuple[float, float]]:
    """Return position and mean of runs of neighbouring positions, over all seeds."""
    longest = max(map(len, rows))
    run = max(1, longest // BINS)
    bins: list[list[float]] = [[] for _ in range(0, longest, run)]
    for row in rows:
        for position, loss in enumerate(row):
            if loss is not None and isfinite(loss):
                bins[position // run].append(loss)
    return [
        (
            number * run + (min(run, longest - number * run) - 1) / 2,
            fmean(losses) if losses else nan,
        )
        for number, losses in enumerate(bins)
    ]


def _to_tensor(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([nan if value is None else value for value in values], dtype=torch.float64)
