"""The ranking as a table: a row for each variant, a column for each place, in its cells means, intervals and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zoo.compare.charts import grouped
from zoo.compare.page import strips
from zoo.compare.page.marks import marks
from zoo.compare.ranking import Standing, ranking, window
from zoo.compare.results import Comparison, Variant
from zoo.compare.text import decimals, named, number, spread
from zoo.diagnostics.drawing import digits
from zoo.diagnostics.drawing.markup import Markup, breaking, tag
from zoo.diagnostics.drawing.scales import Scale

ABREAST = 4  # places side by side; of more, the chosen one is seen
MANY = 12  # variants, from which rows are lower
WORDS = {"best": "best", "within": "within spread"}


def ranks(comparison: Comparison) -> Markup:
    """Rows in the order of the first place; each says its order at the others, for the switch."""
    columns = [
        {one.variant.name: one for one in ranking(comparison, place)} for place in comparison.places
    ]
    scales = [window(list(column.values())).over(0, 100) for column in columns]
    order = [list(column) for column in columns]
    places = decimals(comparison)
    bodies = []
    for title, group in grouped(
        comparison, [columns[0][name].variant for name in order[0]]
    ).items():
        rows = [_row(comparison, variant, columns, scales, order, places) for variant in group]
        head = (
            tag("tr", tag("th", breaking(title), scope="rowgroup"), class_="group")
            if title
            else None
        )
        bodies.append(tag("tbody", head, *rows))
    classes = [
        "ranks",
        "many" if len(comparison.variants) > MANY else "",
        "single" if len(columns) > ABREAST else "",
    ]
    return tag(
        "table",
        _head(comparison),
        *bodies,
        _foot(comparison, scales),
        class_=" ".join(filter(None, classes)),
    )


def _head(comparison: Comparison) -> Markup:
    titles = " \u00d7 ".join(axis.title for axis in comparison.axes)
    cells = (
        tag(
            "th",
            named(comparison, place),
            scope="col",
            class_=_chosen(number),
            data_column=str(number),
        )
        for number, place in enumerate(comparison.places)
    )
    return tag("thead", tag("tr", tag("th", titles, scope="col"), *cells))


def _foot(comparison: Comparison, scales: Sequence[Scale]) -> Markup:
    better = "better \u2192" if comparison.better == "high" else "\u2190 better"
    cells = (
        tag(
            "td",
            tag(
                "div", strips.axis(scale), tag("span", better, class_="number"), class_="strip-row"
            ),
            class_=_chosen(number),
            data_column=str(number),
        )
        for number, scale in enumerate(scales)
    )
    return tag("tfoot", tag("tr", tag("td"), *cells))


def _row(
    comparison: Comparison,
    variant: Variant,
    columns: Sequence[Mapping[str, Standing]],
    scales: Sequence[Scale],
    order: Sequence[Sequence[str]],
    places: int,
) -> Markup:
    flag, done = marks(variant), sum(cell.state == "done" for cell in variant.cells)
    seeds = (
        tag("small", f"{done} of {len(variant.cells)} seeds") if done < len(variant.cells) else None
    )
    notes = tag("span", flag, seeds, class_="notes") if flag or seeds else None
    name = tag("span", breaking(variant.name), class_="variant", title=variant.name)
    cells = (
        _cell(comparison, column[variant.name], column, scale, place, places)
        for place, (column, scale) in enumerate(zip(columns, scales, strict=True))
    )
    first = columns[0][variant.name].mean and str(order[0].index(variant.name) + 1)
    rank = tag("span", first or digits.NOTHING, class_="rank")
    head = tag("th", tag("div", rank, tag("div", name, notes), class_="who"), scope="row")
    return tag(
        "tr", head, *cells, data_order=" ".join(str(one.index(variant.name)) for one in order)
    )


def _cell(
    comparison: Comparison,
    one: Standing,
    column: Mapping[str, Standing],
    scale: Scale,
    place: int,
    places: int,
) -> Markup:
    best = next(iter(column.values())).mean
    looks = {"class_": f"{one.verdict}{_chosen(place) or ''}", "data_column": str(place)}
    where = named(comparison, comparison.places[place])
    if one.mean is None:
        why = "; ".join(one.lacking) or "no seed"
        return tag(
            "td",
            tag("span", why, class_="why"),
            **looks,
            data_tip=f"{one.variant.name}, {where}\n{why}",
        )
    words = WORDS.get(one.verdict) or (
        number(one.behind.mean, places, sign=True) if one.behind else ""
    )
    beside = tag("span", number(one.mean.mean, places), tag("small", words), class_="number")
    strip = strips.strip(one, scale, None if best is None else best.mean)
    return tag(
        "td",
        tag("div", strip, beside, class_="strip-row"),
        **looks,
        data_tip=_tip(one, where, places),
    )


def _tip(one: Standing, where: str, places: int) -> str:
    assert one.mean
    seeds = ", ".join(
        f"{number(value, places)} (seed {seed})" for seed, value in sorted(one.values.items())
    )
    behind = f"to the best {spread(one.behind, places, sign=True)}" if one.behind else ""
    lines = [f"{one.variant.name}, {where}", spread(one.mean, places), behind, seeds, *one.lacking]
    return "\n".join(filter(None, lines))


def _chosen(place: int) -> str | None:
    return " chosen" if place == 0 else None
