"""Tables that a click on a heading sorts: all numbers of each variant, and all cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from zoo.compare.charts import mean_of
from zoo.compare.page.marks import marks
from zoo.compare.ranking import Standing, ranking
from zoo.compare.results import Comparison, Variant
from zoo.compare.text import decimals, listed, measured, named, number, spread
from zoo.diagnostics.drawing import digits
from zoo.diagnostics.drawing.markup import Markup, breaking, tag

WORDS = {"best": "best", "within": "within spread"}


@dataclass(frozen=True)
class Entry:
    """What a cell of a table shows, and what it is sorted by: a number, a word, or nothing, which comes last."""

    shown: str
    key: float | str | None
    look: str | None = None


def numbers(comparison: Comparison) -> Markup:
    """A row for each variant, best first at the first place."""
    columns = [
        {one.variant.name: one for one in ranking(comparison, place)} for place in comparison.places
    ]
    axes = comparison.axes if len(comparison.axes) > 1 else ()
    heads = [
        " \u00d7 ".join(axis.title for axis in comparison.axes),
        *(axis.title for axis in axes),
    ]
    measures = [
        f"{measured(comparison)}, {named(comparison, place)}" for place in comparison.places
    ]
    costs = ["parameters", "step, ms", "memory, MiB", "interpreter", "seeds done"]
    descending = (
        {1 + len(axes) + place for place in range(len(measures))}
        if comparison.better == "high"
        else set()
    )
    rows = [
        [
            _name(one.variant),
            *(Entry(value := one.variant.values.get(axis.key, ""), value) for axis in axes),
            *(_reached(comparison, column[name]) for column in columns),
            *_costs(one.variant),
        ]
        for name, one in columns[0].items()
    ]
    return _sortable([*heads, *measures, *costs], rows, descending)


def cells(comparison: Comparison) -> Markup:
    """A row for each cell."""
    heads = ["variant", "seed", "state", "steps", "minutes", "run directory"]
    rows = [
        [
            _called(variant),
            Entry(str(cell.seed), cell.seed),
            Entry(cell.state, cell.state, f"state {cell.state}"),
            _count(cell.steps),
            _count(cell.minutes, 1),
            Entry(_run(cell.run, cell.fault, cell.differs), cell.run, "run"),
        ]
        for variant in comparison.variants
        for cell in variant.cells
    ]
    return _sortable(heads, rows)


def _run(run: str, fault: str, differs: Sequence[str]) -> Markup:
    notes = [fault, f"did not start as the others: {listed(differs)}" if differs else ""]
    return tag("span", tag("code", breaking(run)), *(tag("small", note) for note in notes if note))


def _name(variant: Variant) -> Entry:
    return Entry(tag("div", _called(variant).shown, marks(variant)), variant.name)


def _called(variant: Variant) -> Entry:
    return Entry(
        tag("span", breaking(variant.name), class_="variant", title=variant.name), variant.name
    )


def _reached(comparison: Comparison, one: Standing) -> Entry:
    if one.mean is None:
        return Entry(
            tag("small", "; ".join(one.lacking) or digits.NOTHING, class_="why"), None, "missing"
        )
    places = decimals(comparison)
    words = WORDS.get(one.verdict, "")
    behind = spread(one.behind, places, sign=True) if one.behind else ""
    mean, _, interval = spread(one.mean, places).partition(" ")
    shown = tag(
        "span",
        tag("b", mean),
        f" {interval}",
        *(tag("small", note) for note in (behind, words) if note),
    )
    return Entry(shown, one.mean.mean, one.verdict)


def _costs(variant: Variant) -> list[Entry]:
    parameters = mean_of(variant, lambda cell: cell.parameters)
    step = mean_of(variant, lambda cell: cell.step_seconds and cell.step_seconds * 1e3)
    memory = mean_of(variant, lambda cell: cell.memory and cell.memory / 2**20)
    interpreters = list(dict.fromkeys(name for cell in variant.cells for name in cell.interpreters))
    names = listed(interpreters) if interpreters else digits.NOTHING
    done = sum(cell.state == "done" for cell in variant.cells)
    seeds = Entry(f"{done} of {len(variant.cells)}", done)
    return [_count(parameters), _count(step, 3), _count(memory), Entry(names, names), seeds]


def _count(value: float | None, significant: int = 0) -> Entry:
    """A whole number, or one with some digits that count."""
    if value is None or not isfinite(value):
        return Entry(digits.NOTHING, None)
    return Entry(
        digits.value(value, significant) if significant > 1 else number(value, significant), value
    )


def _sortable(
    heads: Sequence[str],
    rows: Sequence[Sequence[Entry]],
    descending: set[int] | frozenset[int] = frozenset(),
) -> Markup:
    """A heading is a button; `descending` are the columns whose largest numbers come first at the first click."""
    top = (
        tag(
            "th",
            tag("button", breaking(head), type="button"),
            scope="col",
            data_first="descending" if place in descending else None,
        )
        for place, head in enumerate(heads)
    )
    body = (tag("tr", *(_entry(one, place) for place, one in enumerate(row))) for row in rows)
    table = tag("table", tag("thead", tag("tr", *top)), tag("tbody", *body), class_="sortable")
    return tag("div", table, class_="wide", tabindex="0", role="region", aria_label="Table")


def _entry(one: Entry, place: int) -> Markup:
    key = "" if one.key is None else one.key if isinstance(one.key, str) else repr(float(one.key))
    kind = (
        "number" if isinstance(one.key, (int, float)) else "word" if one.key is not None else "none"
    )
    if place == 0:
        return tag("th", one.shown, scope="row", data_key=key, data_kind=kind)
    return tag("td", one.shown, class_=one.look, data_key=key, data_kind=kind)
