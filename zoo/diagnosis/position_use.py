"""The use of positions by a model: the change of one metric by sample, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from zoo.diagnosis.intervals import LEVEL, estimate_mean
from zoo.diagnosis.report import Control, PairedChange, PositionUse
from zoo.diagnostics.position_ablation import CHANGES
from zoo.reporting.numbers import format_pair, name_metric

UNCHANGED = "unchanged"
SAME = 0.00005
"""Changes of a metric below this are rounding."""
SMALL = 0.01
"""Changes below this fraction of the metric, or of 1 if that is larger, are small: the model hardly
uses positions."""


class SampleValues(NamedTuple):
    """A metric of single samples.

    Attributes:
        metric: The name of the metric, whose value over all samples is the weighted mean.
        values: The values [B] of the samples.
        weights: Their weights [B], such as their numbers of targets.
        is_signed: Whether noise alone changes the metric up and down. Otherwise every change is
            one of the model.
    """

    metric: str
    values: Tensor
    weights: Tensor
    is_signed: bool = True


TOGETHER = 1 - (1 - LEVEL) / len(CHANGES)
"""The level of an interval for each way to change positions, which together are 95 % intervals
(Bonferroni)."""


def compare_samples(
    before: SampleValues | None, after: SampleValues | None, level: float = TOGETHER
) -> PairedChange | None:
    """Estimate the mean change of a metric of the same samples.

    Args:
        before: The metric of the unchanged model; None if single samples have no values.
        after: The same of the changed one.
        level: Probability that the interval contains the mean change.
    """
    if before is None or after is None or len(before.values) != len(after.values):
        return None
    differences = (after.values.double() - before.values.double()).where(before.weights > 0, 0)
    found = estimate_mean(differences[:, None], before.weights.double(), level)
    mean, low, high = (float(part) for part in found)
    return PairedChange(
        metric=before.metric,
        mean=mean,
        low=low,
        high=high,
        samples=int((before.weights > 0).sum()),
        is_signed=before.is_signed,
    )


def judge_position_use(controls: Sequence[Control], causal: bool) -> PositionUse:
    """Judge from the controls whether a model uses positions.

    Args:
        controls: The controls, of which the first has unchanged positions.
        causal: Whether the model has a causal mask.
    """
    unchanged, *others = controls
    if not others:
        return PositionUse(verdict="unknown", text="not measured")
    measured = [control for control in others if not control.refused]
    if not measured:
        return PositionUse(verdict="unknown", text="unknown: the model refuses every change")
    if all(control.metrics == unchanged.metrics for control in measured):
        text = f"not visible: no metric changes when positions do. {_explain_no_change(causal)}"
        return PositionUse(verdict="not visible", text=text)
    if lost := _list_infinite([unchanged, *measured]):
        text = f"unknown: {lost}"
        return PositionUse(verdict="unknown", text=text)
    changes = [(control, control.change) for control in measured if control.change is not None]
    if not changes:
        text = "unknown: single samples have no values, so that no interval tells change from noise"
        return PositionUse(verdict="unknown", text=text)
    if all(math.isnan(change.low) and change.is_signed for _, change in changes):
        count = changes[0][1].samples
        text = f"unknown: {count} samples are too few for an interval; measure three or more"
        return PositionUse(verdict="unknown", text=text)

    # Rounding differs between computations, however small its spread over samples.
    visible = [pair for pair in changes if pair[1].is_visible and abs(pair[1].mean) >= SAME]
    control, change = max(visible or changes, key=lambda pair: abs(pair[1].mean))
    before = unchanged.metrics[change.metric]
    numbers = _describe_change(before, control, change)
    if not visible:
        text = f"not visible: no change is larger than its noise; the largest is {numbers}"
        return PositionUse(verdict="not visible", text=text, control=control.name)
    if abs(change.mean) < SMALL * max(abs(before), 1):
        return PositionUse(verdict="hardly", text=f"hardly: {numbers}", control=control.name)
    return PositionUse(verdict="uses", text=f"uses them: {numbers}", control=control.name)


def _list_infinite(controls: Sequence[Control]) -> str:
    """Return what is not finite among the controls, empty if nothing is."""
    names = [control.change.metric for control in controls if control.change is not None]
    for metric in dict.fromkeys(names):
        lost = [one.name for one in controls if not math.isfinite(one.metrics.get(metric, 0.0))]
        if lost:
            return f"{name_metric(metric)} is not finite with positions {', '.join(lost)}"
    return ""


def _describe_change(before: float, control: Control, change: PairedChange) -> str:
    """Return a sentence about the change of a metric, with its interval."""
    start, end = format_pair(before, before + change.mean)
    details = [f"{change.mean:+.3g}"]
    if math.isfinite(change.low):
        details.append(f"95 % interval {change.low:+.3g} to {change.high:+.3g}")
    details.append(f"{change.samples:,} samples")
    return (
        f"{name_metric(change.metric)} goes from {start} to {end} with positions {control.name} "
        f"({', '.join(details)})"
    )


def _explain_no_change(causal: bool) -> str:
    if causal:
        return (
            "Its encoding does not read positions. The model can know the order only from sums "
            "along the text or from the causal mask, which this ablation cannot measure"
        )
    return (
        "Its encoding does not read positions, or the model has learned to ignore them: "
        "it treats its tokens as a set"
    )
