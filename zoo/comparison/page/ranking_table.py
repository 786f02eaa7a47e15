"""The ranking: a row for each variant, a column for each condition; means, intervals, seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zoo.comparison.curves import group_by_first_axis
from zoo.comparison.number_text import count_decimals
from zoo.comparison.race_text import name_drop
from zoo.comparison.ranking import Standing, choose_scale, rank_variants
from zoo.comparison.results import Comparison, Variant
from zoo.comparison.strips import Strip, build_strip
from zoo.comparison.text import format_difference, format_standing, name_extreme
from zoo.reporting import numbers
from zoo.reporting.cuts import find_side
from zoo.reporting.panel import Scale

ABREAST = 4  # conditions side by side; of more, only the chosen one is shown
MANY = 12  # variants, from which rows are lower
MARGIN = 0.06  # share of an axis without labels, at each end


@dataclass(frozen=True)
class PlacedStrip:
    """A mean on a line with its interval and its seeds, in percent of the width.

    Args:
        strip: What is drawn, in units of the axis.
        lines: Where the ticks of the axis are.
        first: Where the mean of the first variant is; None if it lies outside.
        mean: Where the mean is; None if it lies outside.
        interval: Ends of the interval.
        seeds: Where the seeds are.
    """

    strip: Strip
    lines: list[float]
    first: float | None
    mean: float | None
    interval: tuple[float, float] | None
    seeds: tuple[float, ...]


@dataclass(frozen=True)
class RankCell:
    """One variant under one condition: verdict, text, strip, and the text under the pointer."""

    verdict: str
    tip: str
    text: str = ""
    note: str = ""
    missing: str = ""
    strip: PlacedStrip | None = None


@dataclass(frozen=True)
class RankRow:
    """One variant: its rank under each condition (from 0), the first as text, and its cells."""

    name: str
    flag: str
    flag_tip: str
    unfinished: str
    rank: str
    orders: list[int]
    cells: list[RankCell]


@dataclass(frozen=True)
class RankTable:
    """The ranking; rows in groups by the first axis if there are several axes.

    Args:
        title: Heading of the names.
        columns: Names of the conditions.
        ticks: Position in percent and label of the numbers under each column.
        better: Which way is better.
        groups: Rows by the title of their group, "" where there is one group.
        classes: CSS classes.
    """

    title: str
    columns: list[str]
    ticks: list[list[tuple[float, str]]]
    better: str
    groups: dict[str, list[RankRow]]
    classes: str


def build_table(comparison: Comparison) -> RankTable:
    """Rank the variants under each condition; rows are in the order of the first condition."""
    columns = [
        {standing.variant.name: standing for standing in rank_variants(comparison, condition)}
        for condition in comparison.conditions
    ]
    scales = [choose_scale(list(column.values())) for column in columns]
    variants = [standing.variant for standing in columns[0].values()]
    groups = {
        title: [_build_row(comparison, variant, columns, scales) for variant in group]
        for title, group in group_by_first_axis(comparison, variants).items()
    }
    classes = ["ranks"]
    classes += ["many"] if len(comparison.variants) > MANY else []
    classes += ["single"] if len(columns) > ABREAST else []
    return RankTable(
        title=" \u00d7 ".join(axis.title for axis in comparison.axes),
        columns=[condition.describe() for condition in comparison.conditions],
        ticks=[choose_ticks(scale) for scale in scales],
        better="better \u2192" if comparison.better == "high" else "\u2190 better",
        groups=groups,
        classes=" ".join(classes),
    )


def choose_ticks(scale: Scale) -> list[tuple[float, str]]:
    """Return position in percent and label of two or three round numbers, none near an end."""
    # few round numbers may all lie near an end, where labels would be cut
    for count in (3, 6, 12):
        ticks = [
            (_percent(scale, number), label)
            for number, label in scale.round_numbers(count)
            if MARGIN < scale(number) < 1 - MARGIN
        ]
        if len(ticks) > 1:
            return ticks if len(ticks) <= 3 else ticks[::2]
    return []


def describe_flags(variant: Variant) -> tuple[str, str]:
    """Return the flags of a variant, in a word each and in full."""
    texts = [flag.text for flag in variant.flags if not flag.minor]
    return ", ".join(variant.flag_kinds), "\n".join(texts)


def _build_row(
    comparison: Comparison,
    variant: Variant,
    columns: Sequence[Mapping[str, Standing]],
    scales: Sequence[Scale],
) -> RankRow:
    done, count = sum(cell.state == "done" for cell in variant.cells), len(variant.cells)
    # rows stay in the order of the first condition; the script of the page sorts them by another
    orders = [list(column).index(variant.name) for column in columns]
    has_value = columns[0][variant.name].mean is not None
    flag, flag_tip = describe_flags(variant)
    cells = [
        _build_cell(comparison, condition.describe(), variant, column, scale)
        for condition, column, scale in zip(comparison.conditions, columns, scales, strict=True)
    ]
    return RankRow(
        name=variant.name,
        flag=flag,
        flag_tip=flag_tip,
        unfinished=f"{done} of {count} seeds" if done < count else "",
        rank=str(orders[0] + 1) if has_value else numbers.NOTHING,
        orders=orders,
        cells=cells,
    )


def _build_cell(
    comparison: Comparison,
    condition: str,
    variant: Variant,
    column: Mapping[str, Standing],
    scale: Scale,
) -> RankCell:
    standing = column[variant.name]
    if standing.mean is None:
        missing = "; ".join(standing.missing_reasons) or "no seed"
        tip = f"{variant.name}, {condition}\n{missing}"
        return RankCell(standing.verdict, tip, missing=missing)

    # the same number of decimals in all cells, so that columns can be compared
    digits = count_decimals(comparison)
    notes = {"best": name_extreme(comparison), "possible": "may be best"}
    behind = standing.difference.mean if standing.difference else None
    dropped = standing.dropped and f"worse, stopped after {standing.dropped.look} studies"
    note = (
        dropped
        or notes.get(standing.verdict)
        or ("" if behind is None else numbers.format_fixed(behind, digits, sign=True))
    )
    first_mean = next(iter(column.values())).mean
    return RankCell(
        verdict=standing.verdict,
        tip=_describe(standing, condition, digits),
        text=numbers.format_fixed(standing.mean.mean, digits),
        note=note,
        strip=_place_strip(standing, scale, None if first_mean is None else first_mean.mean),
    )


def _describe(standing: Standing, condition: str, digits: int) -> str:
    """Return the text that the pointer shows: all numbers of a cell."""
    assert standing.mean
    seeds = [
        f"{numbers.format_fixed(value, digits)} (seed {seed})"
        for seed, value in sorted(standing.values.items())
    ]
    behind = standing.difference
    lines = [
        f"{standing.variant.name}, {condition}",
        format_standing(standing, digits),
        f"to the first {format_difference(standing, digits)}" if behind else "",
        name_drop(standing.dropped) if standing.dropped else "",
        ", ".join(seeds),
        *standing.missing_reasons,
    ]
    return "\n".join(filter(None, lines))


def _place_strip(standing: Standing, scale: Scale, first_mean: float | None) -> PlacedStrip:
    strip = build_strip(standing, scale)
    return PlacedStrip(
        strip=strip,
        lines=[at for at, _ in choose_ticks(scale)],
        first=None
        if first_mean is None or find_side(first_mean, scale)
        else _percent(scale, first_mean),
        mean=None if strip.mean is None else _percent(scale, strip.mean),
        interval=strip.interval
        and (_percent(scale, strip.interval[0]), _percent(scale, strip.interval[1])),
        seeds=tuple(_percent(scale, value) for value in strip.seeds),
    )


def _percent(scale: Scale, number: float) -> float:
    return round(100 * scale(number), 2)
