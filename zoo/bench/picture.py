"""A result as a picture: bars of ratios where there is one length, else curves over lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from zoo.bench.machine import told
from zoo.bench.result import Result, Row, spread
from zoo.bench.table import MB, lengths, of, pooled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind people tell apart, without yellow, which is faint on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", ":", "-.")
OURS, PEERS, REFERENCE, GREY = "#0072B2", "#D55E00", "#4d4d4d", "#999999"
TITLES: Mapping[str, str] = {
    "train": "step", "memory": "peak memory", "decode": "decoding", "context": "a token", "layer": "a layer",
}  # fmt: skip


def draw(result: Result, path: Path) -> None:
    """Write a PNG with a panel for each measure that has values."""
    from matplotlib.figure import Figure

    rows = pooled(result.rows)
    measures = [measure for measure in TITLES if of(rows, measure)]
    drawn = [(measure, lengths(of(rows, measure), measure)) for measure in measures]
    tallest = max((len({row.name for row in of(rows, measure)}) for measure in measures), default=1)
    size = (1.0 + 5.2 * max(len(drawn), 1), max(3.6, 1.6 + 0.24 * tallest))
    figure = Figure(figsize=size, layout="constrained", dpi=130)
    for axes, (measure, places) in zip(figure.subplots(1, max(len(drawn), 1), squeeze=False)[0], drawn, strict=False):
        if len(places) > 1:
            _curves(axes, result, of(rows, measure), places)
        else:
            _bars(axes, result, of(rows, measure))
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(_title(result), fontsize=9, x=0.01, ha="left")
    figure.savefig(path)


def _title(result: Result) -> str:
    shape = result.shape
    sizes = f"width {shape['dim']}, {shape['depth']} layers, batch {shape['batch']}, {shape['precision']}"
    partial = "PARTIAL  " if result.partial else ""
    return (
        f"{partial}{shape['name']}: {sizes}; {told(result.machine)}; torch {result.machine['torch']}, zoo {result.zoo}"
    )


def _bars(axes: Axes, result: Result, rows: Sequence[Row]) -> None:
    """Ratios to the reference, sorted, the least on top, with their quartiles."""
    some = [row for row in rows if row.ratios][::-1]
    middles = [median(row.ratios) for row in some]
    around = [spread(row.ratios) or (middle, middle) for row, middle in zip(some, middles, strict=True)]
    below = [middle - low for middle, (low, _) in zip(middles, around, strict=True)]
    above = [high - middle for middle, (_, high) in zip(middles, around, strict=True)]
    axes.barh([row.name for row in some], middles, color=[_bar(row, result) for row in some], height=0.72)
    axes.errorbar(middles, range(len(some)), xerr=[below, above], fmt="none", ecolor=REFERENCE, elinewidth=1, capsize=2)
    for place, (middle, (_, high)) in enumerate(zip(middles, around, strict=True)):
        axes.annotate(f"{middle:.2f}", (high, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.axvline(1, color=GREY, linestyle="--", linewidth=1)
    axes.margins(x=0.12, y=0.02)
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.set_xlabel(f"{TITLES[some[0].measure] if some else ''}, relative to {result.against}")
    axes.set_title(_subtitle(result, some), loc="left", fontsize=10)


def _subtitle(result: Result, rows: Sequence[Row]) -> str:
    if not rows:
        return "nothing to compare"
    unit = "pixels" if result.shape["kind"] == "image" else "tokens"
    return f"{TITLES[rows[0].measure]} at {rows[0].length:,} {unit}"


def _bar(row: Row, result: Result) -> str:
    return PEERS if row.peer else REFERENCE if row.name == result.against else OURS


def _curves(axes: Axes, result: Result, rows: Sequence[Row], places: Sequence[int]) -> None:
    """Each model's time or memory over lengths, named at its end, where the largest stands highest."""
    memory = rows[0].unit == "bytes"
    found: dict[str, list[tuple[int, float]]] = {}
    for row in sorted(rows, key=lambda row: row.length):
        found.setdefault(row.name, []).append((row.length, median(row.values) * (1 / MB if memory else 1e3)))
    order = sorted(found, key=lambda name: found[name][-1][1])
    for number, name in enumerate(order):
        style, colour = STYLES[number // len(COLOURS) % len(STYLES)], COLOURS[number % len(COLOURS)]
        axes.plot(*zip(*found[name], strict=True), style, color=colour, marker="o", markersize=3, linewidth=1.3)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("pixels along a side" if result.shape["kind"] == "image" else "tokens")
    axes.set_ylabel(f"{TITLES[rows[0].measure]}, {'MB at most' if memory else 'ms'}")
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.minorticks_off()
    axes.set_xlim(places[0] / 1.08, places[-1] * 1.08)
    _named(axes, [(name, found[name][-1]) for name in order])


def _named(axes: Axes, ends: Sequence[tuple[str, tuple[int, float]]]) -> None:
    """Names beside the right edge, evenly apart where their curves end too close to each other."""
    low, high = axes.get_ylim()
    shares = [log(value / low) / log(high / low) for _, (_, value) in ends]
    step = min(0.042, 1 / max(len(ends), 1))
    for index in range(1, len(shares)):
        shares[index] = max(shares[index], shares[index - 1] + step)
    over = max(shares, default=0) - 1
    shares = [share - max(over, 0) * (index + 1) / len(shares) for index, share in enumerate(shares)]
    for number, ((name, _), share) in enumerate(zip(ends, shares, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        axes.annotate(name, (1.01, share), xycoords="axes fraction", fontsize=7.5, va="center", color=colour)
