"""Scaling: how the loss falls as a varied size of the model grows, with the slope in logarithms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from statistics import fmean, linear_regression
from typing import Any

from zoo.comparison.ranking import collect_values
from zoo.comparison.results import Axis, Comparison, Variant
from zoo.comparison.statistics import Estimate, estimate_mean
from zoo.options.plain import to_plain
from zoo.reporting.numbers import format_fixed
from zoo.reporting.sections import ReportSection, SectionTable

LEAST = 3
"""Sizes that a slope needs."""
DECIMALS = 4
SCALING_HEADS = ("variants", "parameters", "loss at each size", "slope", "95 % interval")


@dataclass(frozen=True, kw_only=True)
class ScalingLine:
    """The loss of one encoding at several sizes.

    Attributes:
        name: Its values of the other axes; empty if no other varies.
        losses: {parameters: mean loss over seeds}, from small to large.
        slope: The slope d log(loss) / d log(parameters), the mean of those of each seed.
    """

    name: str
    losses: Mapping[int, float]
    slope: Estimate


def find_size_axis(comparison: Comparison) -> Axis | None:
    """Return the only varied number of the model, if a loss is compared at three sizes or more."""
    axes = [
        axis
        for axis in comparison.axes
        if axis.key.startswith("model.")
        and len(axis.settings) >= LEAST
        and all(type(size) in (int, float) for size in axis.settings)
    ]
    return axes[0] if len(axes) == 1 and comparison.better == "low" else None


def fit_scaling(comparison: Comparison) -> list[ScalingLine]:
    """Fit a slope for each combination of the other axes, the steepest first.

    A seed counts if it has a loss at three sizes or more. Lines are fitted by least squares.
    """
    axis = find_size_axis(comparison)
    if axis is None:
        return []
    groups: dict[str, list[Variant]] = {}
    for variant in comparison.variants:
        labels = [value for key, value in variant.values.items() if key != axis.key]
        groups.setdefault(" ".join(labels), []).append(variant)
    lines = [_fit_line(comparison, name, variants) for name, variants in groups.items()]
    fitted = [line for line in lines if line is not None]
    return sorted(fitted, key=lambda line: line.slope.mean)


def _fit_line(comparison: Comparison, name: str, variants: list[Variant]) -> ScalingLine | None:
    losses: dict[int, float] = {}
    points: dict[int, list[tuple[float, float]]] = {}
    for variant in variants:
        sizes = [cell.parameters for cell in variant.cells if cell.parameters]
        values = collect_values(variant, comparison.trained, comparison.measure)
        positive = {seed: value for seed, value in values.items() if value > 0}
        if not sizes or not positive:
            continue
        losses[sizes[0]] = fmean(positive.values())
        for seed, value in positive.items():
            # in logarithms a power law is a straight line
            points.setdefault(seed, []).append((log(sizes[0]), log(value)))
    slopes = [
        linear_regression(*zip(*pairs, strict=True)).slope
        for pairs in points.values()
        if len({size for size, _ in pairs}) >= LEAST
    ]
    if not slopes:
        return None
    return ScalingLine(name=name, losses=dict(sorted(losses.items())), slope=estimate_mean(slopes))


def describe_scaling(comparison: Comparison) -> dict[str, Any]:
    """Return the slopes as plain data, for results.json."""
    return {
        line.name: {
            "losses": {str(size): loss for size, loss in line.losses.items()},
            "slope": to_plain(line.slope),
        }
        for line in fit_scaling(comparison)
    }


def list_scaling_rows(comparison: Comparison) -> list[list[str]]:
    """Return a row for each line."""
    return [
        [
            line.name or "all",
            ", ".join(f"{size:,}" for size in line.losses),
            ", ".join(format_fixed(loss, DECIMALS) for loss in line.losses.values()),
            format_fixed(line.slope.mean, DECIMALS),
            ""
            if line.slope.low is None or line.slope.high is None
            else f"{line.slope.low:.{DECIMALS}f} to {line.slope.high:.{DECIMALS}f}",
        ]
        for line in fit_scaling(comparison)
    ]


def explain_scaling(comparison: Comparison) -> str:
    """Explain the table of slopes."""
    word = "studies" if comparison.studies else "seeds"
    return (
        f"Slope: d log(loss) / d log(parameters), fitted for each of the {word}; the interval is "
        f"over {word}. All sizes train equally long, so it is the gain by size at equal steps."
    )


def build_scaling_section(comparison: Comparison) -> ReportSection | None:
    """Return the slopes; None if no size of the model varies."""
    rows = list_scaling_rows(comparison)
    if not rows:
        return None
    return ReportSection(
        key="scaling",
        title="Scaling",
        table=SectionTable(heads=SCALING_HEADS, rows=rows, left=("variants",)),
        sentences=[explain_scaling(comparison)],
    )
