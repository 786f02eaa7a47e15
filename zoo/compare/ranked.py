"""The ranking of a comparison as a figure: for each place a row for each variant, the best on top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.compare.painting import BLUE, GREY, WHOLE, finish, framed, plain
from zoo.compare.ranking import Standing, ranking
from zoo.compare.result import Comparison
from zoo.compare.window import window
from zoo.compare.wording import capital, decimals, measured, named, number
from zoo.diagnostics.drawing.scales import Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ABREAST = 4
SEEN = "filled: the best mean; open: within the spread of seeds of it; small dots: seeds; bars: 95 % intervals"
ALONE = "one seed each, which cannot tell a difference from chance"
SIGNS = {"parameters": "\u2020", "attention": "\u2021"}
OTHER = "*"  # the sign of any other flag


def ranked(comparison: Comparison) -> Figure:
    height = max(2.0, 0.9 + 0.3 * len(comparison.variants))
    figure, every = framed(comparison, len(comparison.places), ABREAST, (4.2, height))
    places = decimals(comparison)
    for axes, place in zip(every, comparison.places, strict=True):
        standings = ranking(comparison, place)
        seen = window(standings)
        for row, one in enumerate(standings):
            _standing(axes, one, row, seen, places)
        axes.set_yticks(range(len(standings)), [plain(_label(one)) for one in standings], fontsize=8)
        axes.set_ylim(len(standings) - 0.5, -0.5)
        axes.set_xlim(seen.low, seen.high)
        better = "\u2192" if comparison.better == "high" else "\u2190"
        axes.set(
            title=plain(capital(named(comparison, place))), xlabel=plain(f"{measured(comparison)}, better {better}")
        )
        finish(axes)
    said = [SEEN if len(comparison.seeds) > 1 else ALONE, *_signs(comparison)]
    figure.supxlabel(plain("; ".join(said), 3 * WHOLE), fontsize=8, color=GREY)
    return figure


def _label(one: Standing) -> str:
    signs = dict.fromkeys(SIGNS.get(what, OTHER) for what in one.variant.marks)
    return " ".join([one.variant.name, *signs])


def _signs(comparison: Comparison) -> list[str]:
    """What the signs beside names say, of those that are there."""
    found = dict.fromkeys(what for variant in comparison.variants for what in variant.marks)
    told = [f"{what} {SIGNS.get(what, OTHER)}" for what in found]
    return [f"not as in most: {', '.join(told)}"] if told else []


def _standing(axes: Axes, one: Standing, row: int, seen: Scale, places: int) -> None:
    paint = BLUE if one.verdict in ("best", "within") else GREY
    if one.mean is None:
        _note(axes, row, "; ".join(one.lacking), 0.5)
        return
    if not seen.low <= one.mean.mean <= seen.high:
        below = one.mean.mean < seen.low
        value = number(one.mean.mean, places)
        _note(axes, row, f"\u25c2 {value}" if below else f"{value} \u25b8", 0.02 if below else 0.98)
        return
    if one.mean.low is not None and one.mean.high is not None:
        ends = [one.mean.low, one.mean.high]
        axes.plot(ends, [row, row], color=paint, alpha=0.4, linewidth=4, solid_capstyle="round")
        axes.plot(list(one.values.values()), [row + 0.28] * len(one.values), ".", color=paint, markersize=3)
    inside = "white" if one.verdict == "within" else paint
    axes.plot([one.mean.mean], [row], "o", color=paint, markerfacecolor=inside, markersize=6)


def _note(axes: Axes, row: int, words: str, share: float) -> None:
    """Words at a share of the width."""
    side = "left" if share < 0.5 else "right" if share > 0.5 else "center"
    axes.text(
        share, row, plain(words), transform=axes.get_yaxis_transform(), ha=side, va="center", fontsize=7, color=GREY
    )
