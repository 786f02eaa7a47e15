"""A result as a picture: bars of ratios where there is one length, else curves over lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from zoo.bench.result import Result, Row, spread, told
from zoo.bench.table import MB, lengths, of, pooled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind people tell apart, without yellow, which is faint on white
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
OURS, PEERS, REFERENCE, GREY, FAINT = "#0072B2", "#D55E00", "#4d4d4d", "#888888", "#dddddd"
NARROW = 4.0  # times the least, which an axis over lengths shows at least
TITLES: Mapping[str, str] = {
    "train": "step",
    "memory": "peak memory",
    "decode": "decoding after a prompt",
    "context": "a token",
    "layer": "a layer",
}


def draw(result: Result, path: Path) -> None:
    """Write a PNG with a panel for each measure that has values."""
    from matplotlib.figure import Figure

    rows = pooled(result.rows)
    panels = [
        (found, lengths(found, measure)) for measure in TITLES if (found := of(rows, measure))
    ] or [([], [])]
    most = max((len(found) for found, places in panels if len(places) < 2), default=0)
    columns, down = min(len(panels), 2), ceil(len(panels) / 2)
    size = (1.0 + 5.2 * columns, down * max(3.8, 1.6 + 0.24 * most))
    figure = Figure(figsize=size, layout="constrained", dpi=130)
    places_for = figure.subplots(down, columns, squeeze=False).flatten()
    for spare in places_for[len(panels) :]:
        spare.remove()
    for axes, (found, places) in zip(places_for, panels, strict=False):
        if len(places) > 1:
            _curves(axes, result, found, places, _coloured(result, panels[0][0]))
        else:
            _bars(axes, result, found)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(_title(result), fontsize=9, x=0.01, ha="left")
    figure.savefig(path)


def _title(result: Result) -> str:
    shape = result.shape
    sizes = f"width {shape['dim']}, {shape['depth']} layers, batch {shape['batch']}, {shape['precision']}"
    partial = "PARTIAL  " if result.partial else ""
    where = f"{told(result.machine)}; torch {result.machine['torch']}, zoo {result.zoo}"
    return f"{partial}{shape['name']}: {sizes}\n{where}"


def _bars(axes: Axes, result: Result, rows: Sequence[Row]) -> None:
    """Ratios to the reference, sorted, the least on top, with their quartiles."""
    some = [row for row in rows if row.ratios][::-1]
    middles = [median(row.ratios) for row in some]
    around = [
        spread(row.ratios) or (middle, middle) for row, middle in zip(some, middles, strict=True)
    ]
    below = [middle - low for middle, (low, _) in zip(middles, around, strict=True)]
    above = [high - middle for middle, (_, high) in zip(middles, around, strict=True)]
    axes.barh(
        [row.name for row in some], middles, color=[_bar(row, result) for row in some], height=0.72
    )
    axes.errorbar(
        middles,
        range(len(some)),
        xerr=[below, above],
        fmt="none",
        ecolor=REFERENCE,
        elinewidth=1,
        capsize=2,
    )
    for place, (middle, (_, high)) in enumerate(zip(middles, around, strict=True)):
        axes.annotate(
            f"{middle:.2f}",
            (high, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.axvline(1, color=GREY, linestyle="--", linewidth=1)
    axes.margins(x=0.12, y=0.02)
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.set_xlabel(f"{TITLES[some[0].measure] if some else ''}, relative to {result.against}")
    axes.set_title(_subtitle(result, some), loc="left", fontsize=10)


def _subtitle(result: Result, rows: Sequence[Row]) -> str:
    if not rows:
        return "nothing to compare"
    unit = "pixels" if result.shape["kind"] == "image" else "tokens"
    return f"{TITLES[rows[0].measure]}, {rows[0].length:,} {unit}"


def _bar(row: Row, result: Result) -> str:
    return PEERS if row.peer else REFERENCE if row.name == result.against else OURS


def _curves(
    axes: Axes,
    result: Result,
    rows: Sequence[Row],
    places: Sequence[int],
    colours: Mapping[str, str],
) -> None:
    """Each model's time or memory over lengths; those with a colour are named at their end, others stand in grey."""
    from matplotlib.ticker import LogLocator

    memory = rows[0].unit == "bytes"
    found: dict[str, list[tuple[int, float]]] = {}
    for row in sorted(rows, key=lambda row: row.length):
        found.setdefault(row.name, []).append(
            (row.length, median(row.values) * (1 / MB if memory else 1e3))
        )
    for name, points in found.items():
        colour = colours.get(name, FAINT)
        axes.plot(
            *zip(*points, strict=True),
            color=colour,
            marker="o",
            markersize=3,
            linewidth=1.4,
            zorder=2 + (name in colours),
        )
    axes.set(xscale="log", yscale="log")
    low, high = axes.get_ylim()
    room = max(1.0, (NARROW * low / high) ** 0.5)  # so that a few percent do not look like a cliff
    axes.set_ylim(low / room, high * room)
    axes.set_title(f"{TITLES[rows[0].measure]}, over lengths", loc="left", fontsize=10)
    axes.set_xlabel("pixels along a side" if result.shape["kind"] == "image" else "tokens")
    axes.set_ylabel("MB at most" if memory else "ms")
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")  # plain numbers, whose fonts every machine has
    axes.minorticks_off()
    ends = sorted((points[-1][1], name) for name, points in found.items() if name in colours)
    _named(axes, ends, colours, rest=len(found) - len(ends))


def _named(
    axes: Axes, ends: Sequence[tuple[float, str]], colours: Mapping[str, str], rest: int
) -> None:
    """Names beside the right edge, at the height of the last value, apart where these lie too close."""
    low, high = axes.get_ylim()
    shares = [log(value / low) / log(high / low) for value, _ in ends]
    for index in range(1, len(shares)):
        shares[index] = max(shares[index], shares[index - 1] + 0.055)
    for (_, name), share in zip(ends, shares, strict=True):
        axes.annotate(
            name,
            (1.01, share),
            xycoords="axes fraction",
            fontsize=8,
            va="center",
            color=colours[name],
        )
    if rest:
        axes.annotate(
            f"{rest} others in grey",
            (0.02, 0.97),
            xycoords="axes fraction",
            fontsize=8,
            va="top",
            color=GREY,
        )


def _coloured(result: Result, rows: Sequence[Row]) -> dict[str, str]:
    """A colour for each model where there are few; else for the reference and some from the quickest to the slowest."""
    longest = max((row.length for row in rows), default=0)
    order = [row.name for row in of(rows, rows[0].measure, longest)] if rows else []
    others = [name for name in order if name != result.against]
    if len(others) >= len(COLOURS):
        share = (len(others) - 1) / (len(COLOURS) - 2)
        others = [others[round(number * share)] for number in range(len(COLOURS) - 1)]
    return dict(zip([result.against, *others], COLOURS, strict=False))
