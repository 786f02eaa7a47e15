"""Numbers as bars."""

from __future__ import annotations

import math

from zoo.diagnostics.drawing import digits
from zoo.diagnostics.drawing.axes import LETTER, WIDTH, stacked
from zoo.diagnostics.drawing.markup import Markup, tag
from zoo.diagnostics.drawing.scales import Scale
from zoo.reporting.spec import Numbers

STEP, THICK, TOP = 22.0, 12.0, 26.0
LONGEST = 30  # letters of a name


def numbers(panel: Numbers) -> Markup:
    """A bar for each name, from 0, with its number behind it."""
    names = [
        name if len(name) <= LONGEST else name[: LONGEST - 1] + "\u2026" for name in panel.values
    ]
    left = 12 + LETTER * max((len(name) for name in names), default=1)
    axis = _axis(list(panel.values.values())).over(left, WIDTH - 58)
    rows = [
        _row(name, number, axis, TOP + STEP * place)
        for place, (name, number) in enumerate(zip(names, panel.values.values(), strict=True))
    ]
    head = tag("text", panel.y, x=2, y=12, class_="name")
    high = TOP + STEP * len(rows)
    return stacked(
        tag(
            "svg",
            head,
            *rows,
            role="img",
            aria_label=panel.title,
            class_="bars",
            viewBox=f"0 0 {WIDTH:g} {high:g}",
        )
    )


def bar(number: float, most: float) -> Markup:
    """A bar as long as the share that a number is of the most, for a cell of a table."""
    share = number / most if math.isfinite(number) and most > 0 else 0.0
    filled = tag("rect", width=100 * min(max(share, 0.0), 1.0), height=8, class_="s0")
    return tag(
        "svg",
        filled,
        class_="bar",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def _axis(values: list[float]) -> Scale:
    seen = [number for number in values if math.isfinite(number)]
    low, high = min([0.0, *seen]), max([0.0, *seen])
    return Scale(low, high if high > low else low + 1.0)


def _row(name: str, number: float, axis: Scale, top: float) -> Markup:
    middle, zero = top + THICK / 2 + 3.8, axis(0.0)
    end = axis(number) if math.isfinite(number) else zero
    sides = {"x": min(zero, end), "y": top, "width": abs(end - zero), "height": THICK}
    return tag(
        "g",
        tag("text", name, x=axis.start - 8, y=middle, class_="tick end"),
        tag("rect", **sides, rx=1.5, class_="s0"),
        tag("text", digits.value(number, 3), x=max(zero, end) + 6, y=middle, class_="tick"),
    )
