"""One mean on a line with its interval and its seeds, as wide as there is room."""

from __future__ import annotations

from collections.abc import Iterator

from zoo.compare.ranking import Standing
from zoo.diagnostics.drawing.markup import Markup, tag
from zoo.diagnostics.drawing.scales import Scale

UPPER, LOWER = "38%", "76%"  # where means and their intervals lie, and seeds


def strip(one: Standing, axis: Scale, best: float | None) -> Markup:
    """The mean of a standing over the lines of the axis; an arrow where it lies outside."""
    lines = [_upright(axis(number), "grid") for number, _ in _ticks(axis)]
    if best is not None:
        lines.append(_upright(axis(best), "best-line"))
    return tag("svg", *lines, *_marks(one, axis), class_="strip", aria_hidden="true")


def _marks(one: Standing, axis: Scale) -> Iterator[Markup]:
    assert one.mean
    if not axis.low <= one.mean.mean <= axis.high:
        low = one.mean.mean < axis.low
        yield tag(
            "text",
            "\u25c2" if low else "\u25b8",
            x="0" if low else "100%",
            y=UPPER,
            class_=f"off{'' if low else ' end'}",
        )
        return
    if one.mean.low is not None and one.mean.high is not None:
        ends = [
            _percent(axis(min(max(end, axis.low), axis.high)))
            for end in (one.mean.low, one.mean.high)
        ]
        yield tag("line", x1=ends[0], x2=ends[1], y1=UPPER, y2=UPPER, class_="interval")
    yield tag("circle", cx=_percent(axis(one.mean.mean)), cy=UPPER, r=4.6, class_="mean")
    for value in one.values.values() if one.mean.count > 1 else ():
        if axis.low <= value <= axis.high:
            yield tag("circle", cx=_percent(axis(value)), cy=LOWER, r=2.2, class_="seed")


def axis(along: Scale) -> Markup:
    """Numbers under the strips of a column."""
    labels = (
        tag("text", label, x=_percent(along(number)), y="12", class_="middle")
        for number, label in _ticks(along)
    )
    return tag("svg", *labels, class_="strip axis", aria_hidden="true")


def _ticks(along: Scale) -> list[tuple[float, str]]:
    """Two or three, for one number alone is no scale, and none so near to an end that its label would be cut."""
    every = ([one for one in along.ticks(most) if 6 < along(one[0]) < 94] for most in (3, 6, 12))
    ticks = next((ticks for ticks in every if len(ticks) > 1), [])
    return ticks if len(ticks) <= 3 else ticks[::2]


def _upright(share: float, look: str) -> Markup:
    return tag("line", x1=_percent(share), x2=_percent(share), y1="0", y2="100%", class_=look)


def _percent(share: float) -> str:
    return f"{share:.2f}%"
