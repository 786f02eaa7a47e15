"""Judge by validation curves whether variants were trained to the end.

A variant whose curve is not flat may rank otherwise after longer training, so that a comparison
with such a variant gives no verdict.
"""

from __future__ import annotations

from zoo.comparison.results import Comparison, ComparisonCell
from zoo.suggestions import join_words

FLAT = 0.02
"""Largest change of the last validation, relative to the scale of the metric, of a flat curve."""


def list_steep(comparison: Comparison) -> list[str]:
    """Return the variants whose curves are not flat at the end in most seeds."""
    unfinished = []
    for variant in comparison.variants:
        tested = [cell for cell in variant.cells if cell.curve and cell.measurements]
        steep = [cell for cell in tested if not _is_flat(cell)]
        if 2 * len(steep) > len(tested):
            unfinished.append(variant.name)
    return unfinished


def explain_steep(comparison: Comparison) -> str:
    """Return which variants were not trained to the end, as a clause; empty if all were."""
    steep = list_steep(comparison)
    if not steep:
        return ""
    if len(steep) == len(comparison.variants):
        return "no variant was trained to the end"
    names = join_words([f"`{name}`" for name in steep], most=len(steep))
    return f"{names} {'was' if len(steep) == 1 else 'were'} not trained to the end"


def describe_steep(comparison: Comparison) -> str:
    """Warn of variants that were not trained to the end; empty if all were."""
    clause = explain_steep(comparison)
    if not clause:
        return ""
    return (
        f"No verdict: {clause}. The monitored validation metric still changed by more than "
        f"{100 * FLAT:g} % between the last two validations, or there is one validation only; "
        "train longer."
    )


def _is_flat(cell: ComparisonCell) -> bool:
    """Return whether the last two validations that are kept hardly differ."""
    values = [value for _, value in cell.curve]
    finite = [value for value in values if value is not None]
    # one validation shows no end
    if len(finite) < len(values) or len(finite) < 2:
        return False
    sizes = [*map(abs, finite)]
    if finite[0] > finite[-1]:
        # a loss, which may begin below that of a guess
        sizes += cell.baselines.get("test/loss", {}).values()
    return abs(finite[-1] - finite[-2]) <= FLAT * max(sizes)
