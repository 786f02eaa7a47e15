"""A mean on an axis with its interval and its seeds, as the page and the figures draw it.

The axis leaves out outliers, which would squeeze all others: `Strip` says what of a variant lies
beyond it. The legend names what is drawn and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from zoo.comparison.ranking import Standing
from zoo.comparison.statistics import FEWEST, LEVEL
from zoo.reporting.cuts import find_side
from zoo.reporting.panel import Scale
from zoo.suggestions import join_words

Sides = tuple[bool, bool]
"""What is true of the start and of the end of an axis."""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """The strip of one variant, in units of the axis.

    Attributes:
        mean: The mean; None if it lies beyond the axis.
        mean_side: -1 for a mean before the axis, 1 for one past its end, else 0.
        interval: The part of the interval that the axis holds; None if there is none.
        interval_cuts: Whether the interval goes on beyond the start and beyond the end.
        seeds: Values of seeds that the axis holds; empty if there is one seed.
        seed_cuts: Whether seeds lie beyond the start and beyond the end.
    """

    mean: float | None
    mean_side: int = 0
    interval: tuple[float, float] | None = None
    interval_cuts: Sides = (False, False)
    seeds: tuple[float, ...] = ()
    seed_cuts: Sides = (False, False)

    @property
    def is_cut(self) -> bool:
        """True if something lies beyond the axis."""
        return bool(self.mean_side) or any(self.interval_cuts) or any(self.seed_cuts)


def build_strip(standing: Standing, scale: Scale) -> Strip:
    """Return what a strip shows of a variant that has a mean."""
    mean = standing.mean
    assert mean is not None
    side = find_side(mean.mean, scale)

    interval, interval_cuts = None, (False, False)
    if mean.low is not None and mean.high is not None:
        interval_cuts = (find_side(mean.low, scale) < 0, find_side(mean.high, scale) > 0)
        low, high = max(mean.low, scale.low), min(mean.high, scale.high)
        # an interval beyond the axis has nothing to draw; the arrow of its mean stands for it
        interval = (low, high) if low <= high else None

    values = standing.values.values() if mean.count > 1 else ()
    sides = {value: find_side(value, scale) for value in values}
    return Strip(
        mean=None if side else mean.mean,
        mean_side=side,
        interval=interval,
        interval_cuts=interval_cuts,
        seeds=tuple(value for value in values if not sides[value]),
        seed_cuts=(-1 in sides.values(), 1 in sides.values()),
    )


def explain_strips(
    columns: Iterable[tuple[Sequence[Standing], Scale]], extreme: str
) -> Iterator[str]:
    """Yield the entries of the legend of strips: what is drawn, and nothing else.

    Args:
        columns: The variants under each condition, and the axis that they are drawn on.
        extreme: What the first variant has, such as "highest mean".
    """
    standings, strips = [], []
    for column, scale in columns:
        measured = [standing for standing in column if standing.mean]
        standings += measured
        strips += [build_strip(standing, scale) for standing in measured]
    if not strips:
        return
    verdicts = {
        standing.verdict
        for standing, strip in zip(standings, strips, strict=True)
        if strip.mean is not None
    }
    counts = [standing.mean.count for standing in standings if standing.mean]
    if "best" in verdicts:
        yield f"filled: the {extreme}"
    if "possible" in verdicts:
        yield "open: may be best too"
    grey = [meaning for verdict, meaning in GREY.items() if verdict in verdicts]
    if grey:
        yield f"grey: {join_words(grey, 'or')}"
    if any(strip.seeds for strip in strips):
        yield "small dots: seeds"
    if any(strip.interval for strip in strips):
        yield f"bars: {LEVEL * 100:g} % intervals"
    if any(strip.is_cut for strip in strips):
        yield "arrows: further off than is drawn"
    if max(counts) == 1:
        yield "one seed each, which cannot tell a difference from chance"
    elif max(counts) < FEWEST:
        yield "fewer than three seeds, which cannot tell a difference from chance"


GREY = {"worse": "worse", "unsure": "not judged"}
"""What grey points are, by their verdicts."""
