"""Looks at the finished studies of a comparison, and the false alarms that each look may have.

The 5 % of false alarms are shared by the looks that were planned (Bonferroni): the first look, at
which three studies tell little, has a tenth of them, and the others have equal parts of the rest.
Of 3 and 5 planned studies the looks have 0.5 and 4.5 %; a single look has all.

A comparison that is made longer after it was finished is looked at once more than was planned: each
such continuation has half of the false alarms of the one before, 2.5 % of the first. All looks
together then have at most 7.5 %, of any number of continuations less than 10 %. Looks at folders of
other names cannot be counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zoo.comparison.statistics import FEWEST, LEVEL

LOOKS = (3, 5, 8, 12, 18)
"""Numbers of finished studies after which a race looks at the data."""
FIRST_SHARE = 0.1
"""Share of the false alarms that the first of several looks has."""
FIVE_LOOKS = dict.fromkeys(LOOKS, 1 - (1 - LEVEL) / len(LOOKS))
"""The looks of plans of version 0.3.0, which do not state them: each has a fifth of 5 %."""


def plan_looks(planned: Sequence[int]) -> dict[int, float]:
    """Return the looks of a comparison in studies.

    Args:
        planned: The number of studies that were planned, in the order of the plans: more than one
            if a finished comparison was continued.

    Returns:
        {number of studies: probability that all intervals of this look hold their true
        differences}.
    """
    levels: dict[int, float] = {}
    for continuation, studies in enumerate(planned):
        before = max(levels, default=0)
        looks = [look for look in (*LOOKS, studies) if before < look <= studies]
        levels |= spend_alpha(sorted({*looks}), (1 - LEVEL) / 2**continuation)
    return levels


def find_look(looks: Mapping[int, float], studies: int) -> tuple[int, float] | None:
    """Return the last look that a number of finished studies allows, and its level.

    Args:
        looks: What `plan_looks` returned when the comparison was planned.
        studies: The number of finished studies.

    Returns:
        The look and the probability that its intervals hold; None before the first look.
    """
    return max((pair for pair in looks.items() if pair[0] <= studies), default=None)


def spend_alpha(looks: Sequence[int], alpha: float = 1 - LEVEL) -> dict[int, float]:
    """Return {look: level} such that all looks together have at most `alpha` false alarms.

    Args:
        looks: Numbers of studies, ascending.
        alpha: The false alarms of all looks together.
    """
    counted = [look for look in looks if look >= FEWEST]
    # a single look may spend all of it
    if len(counted) < 2:
        return dict.fromkeys(counted, 1 - alpha)
    first_look, *later_looks = counted
    later = (1 - FIRST_SHARE) / len(later_looks)
    return {first_look: 1 - alpha * FIRST_SHARE} | dict.fromkeys(later_looks, 1 - alpha * later)
