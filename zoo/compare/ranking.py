"""Variants in the order of what they reached at a place, and which of them the spread of seeds tells apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Literal

from zoo.compare.results import Cell, Comparison, Variant
from zoo.compare.statistics import Estimate, apart, difference, estimate
from zoo.reporting.scale import Scale

Verdict = Literal["best", "within", "beyond", "unsure", "missing"]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One variant at one place.

    `verdict`: best by its mean, or equal to that in every seed; within the spread of seeds of the best, or worse than that;
    unsure where fewer than two seeds have both, or where those that have both tell that it is better; missing where no
    seed has a value.
    """

    variant: Variant
    values: Mapping[int, float]  # {seed: value}, of seeds with a finite one
    mean: Estimate | None
    behind: Estimate | None  # value - value of the best, over the seeds of both
    verdict: Verdict
    lacking: tuple[str, ...]  # why seeds have no value


def ranking(comparison: Comparison, place: str) -> tuple[Standing, ...]:
    """All variants at a place, the best first; those without a value last, as they are listed."""
    sign = _sign(comparison)
    found = {
        variant.name: values(variant, place, comparison.measure) for variant in comparison.variants
    }
    means = {name: estimate(tuple(seeds.values())) for name, seeds in found.items() if seeds}
    order = sorted(
        comparison.variants,
        key=lambda one: sign * means[one.name].mean if one.name in means else float("inf"),
    )
    best = found[order[0].name] if order else {}
    order.sort(
        key=lambda one: found[one.name] != best
    )  # those that are equal to the best stand beside it
    return tuple(
        _standing(comparison, variant, place, found[variant.name], best, first=number == 0)
        for number, variant in enumerate(order)
    )


def values(variant: Variant, place: str, measure: str) -> dict[int, float]:
    """{seed: value} of the cells that have a finite one."""
    found = {cell.seed: cell.metrics.get(place, {}).get(measure) for cell in variant.cells}
    return {seed: value for seed, value in found.items() if value is not None and isfinite(value)}


def lacking(variant: Variant, place: str, measure: str) -> tuple[str, ...]:
    """Why seeds of a variant have no finite value at a place, each reason once; where all are refused, that of the first, since
    the others' differ by what was drawn alone.
    """
    if all(place in cell.refused for cell in variant.cells):
        return tuple(_why(cell, place, measure) for cell in variant.cells[:1])
    told: dict[str, list[str]] = {}
    for cell in variant.cells:
        if why := _why(cell, place, measure):
            told.setdefault(why, []).append(str(cell.seed))
    every = len(variant.cells)
    return tuple(
        why
        if len(seeds) == every
        else f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)}: {why}"
        for why, seeds in told.items()
    )


def _why(cell: Cell, place: str, measure: str) -> str:
    value = cell.metrics.get(place, {}).get(measure)
    if value is not None:
        return "" if isfinite(value) else f"no finite number ({value})"
    if place in cell.refused:
        return f"refused: {cell.refused[place]}"
    if cell.state == "failed":
        return f"failed: {cell.fault}" if cell.fault else "failed"
    return "not measured here" if cell.state == "done" else cell.state


def _standing(
    comparison: Comparison,
    variant: Variant,
    place: str,
    own: dict[int, float],
    best: dict[int, float],
    *,
    first: bool,
) -> Standing:
    bounds, sign = comparison.bounds, _sign(comparison)
    mean = estimate(tuple(own.values()), bounds) if own else None
    behind = None if first else difference(own, best, bounds)
    verdict: Verdict = "missing"
    if mean is not None and (first or own == best):
        verdict = "best"
    elif mean is not None and (behind is None or behind.low is None):
        verdict = "unsure"
    elif mean is not None and behind is not None:
        verdict = (
            "within" if not apart(behind) else "beyond" if sign * behind.mean > 0 else "unsure"
        )
    why = lacking(variant, place, comparison.measure)
    return Standing(
        variant=variant, values=own, mean=mean, behind=behind, verdict=verdict, lacking=why
    )


def _sign(comparison: Comparison) -> int:
    """By which values are multiplied to be the better the lower."""
    return -1 if comparison.better == "high" else 1


FAR = 8.0  # times as far from the best as the middle one of those that are not equal to it, from where on nothing is drawn
WIDE = 2.0  # times the spread of all seeds, by which intervals may widen the scale


def window(standings: Sequence[Standing]) -> Scale:
    """What lies far from all others does not press these together."""
    there = [one for one in standings if one.mean]
    if not there:
        return Scale(0.0, 1.0)
    best = there[0].mean.mean if there[0].mean else 0.0
    distances = [max(abs(value - best) for value in one.values.values()) for one in there]
    reach = FAR * median([distance for distance in distances if distance > 0] or [0.0])
    near = [one for one in there if one.mean and abs(one.mean.mean - best) <= reach] or there[:1]
    dots = [value for one in near for value in one.values.values()]
    room = WIDE * (max(dots) - min(dots))
    ends = [
        end for one in near if one.mean for end in (one.mean.low, one.mean.high) if end is not None
    ]
    low, high = (
        min([*dots, *(max(end, min(dots) - room) for end in ends)]),
        max([*dots, *(min(end, max(dots) + room) for end in ends)]),
    )
    margin = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
    return Scale(low - margin, high + margin)
