"""In a sentence, what the controls say: whether a model uses the places of its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zoo.diagnostics.report.contents import Control

AS_THEY_ARE = "as they are"
SAME = 0.00005  # a change that is smaller says nothing


def verdict(controls: Sequence[Control], metric: str, causal: bool) -> str:
    """What becomes of a metric where places are changed. Where nothing at all changes, the model reads no places."""
    own, *others = controls
    asked = [control for control in others if not control.refused]
    if not asked:
        return "not asked" if not others else "unknown: the model refuses every change"
    if all(control.metrics == own.metrics for control in asked):
        return f"none: no metric changes at all where places do. {_instead(causal)}"
    before = own.metrics[metric]
    lost = [control.name for control in asked if not math.isfinite(control.metrics[metric])]
    if lost or not math.isfinite(before):
        return f"{metric} is no number with places {', '.join(lost or [own.name])}"
    most = max(asked, key=lambda control: abs(control.metrics[metric] - before))
    by = abs(most.metrics[metric] - before)
    if by < SAME:
        told = "though other metrics change" if by == 0 else f"but for less than {SAME:.5f}"
        return f"{metric} stays at {before:.4f} wherever tokens are put, {told}"
    return f"{metric} goes from {before:.4f} to {most.metrics[metric]:.4f} with them {most.name}, which changes most"


def _instead(causal: bool) -> str:
    if causal:
        return (
            "Its encoding reads none. What the model knows of order comes from sums along the text or from the causal mask "
            "alone, and these controls cannot tell how much that is"
        )
    return "Its encoding reads none, or the model has learned to do without: it takes its tokens for a set"
