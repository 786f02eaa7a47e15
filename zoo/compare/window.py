"""What part of the numbers a ranking shows, so that those near the best are told apart."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from zoo.compare.ranking import Standing
from zoo.diagnostics.drawing.scales import Scale

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
    ends = [end for one in near if one.mean for end in (one.mean.low, one.mean.high) if end is not None]
    low, high = (
        min([*dots, *(max(end, min(dots) - room) for end in ends)]),
        max([*dots, *(min(end, max(dots) + room) for end in ends)]),
    )
    margin = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
    return Scale(low - margin, high + margin)
