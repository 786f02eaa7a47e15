"""Tables of a number for each head in each layer, coloured by how large it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from zoo.diagnostics.drawing import digits, maps
from zoo.diagnostics.drawing.colours import LEVELS, RAMPS
from zoo.diagnostics.drawing.markup import Markup, breaking, tag
from zoo.diagnostics.drawing.scales import Scale, calm
from zoo.diagnostics.report import Measure

MANY, CROWD = 8, 16  # heads, from which the numbers fit into wide tables alone, or into none
LEAST = 1e-3  # that the strongest colour stands for: what is smaller is rounding
NOTHING = 1e-5  # what is smaller is 0 but for rounding


def tables(measures: Mapping[str, Measure], layers: Mapping[str, Sequence[int]]) -> Markup:
    """One measure of several runs, {run: measure}, on one scale; runs are named where there are several.

    `layers` are the numbers of the rows.
    """
    values = torch.cat([_rounded(measure.values).flatten() for measure in measures.values()])
    ends, look = _ends(values)
    first = next(iter(measures.values()))
    drawn = (
        _table(one, layers[name], name if len(measures) > 1 else None, ends, look)
        for name, one in measures.items()
    )
    told = tag("p", class_="told", aria_live="polite", data_unit=first.unit)
    foot = tag("div", maps.scale(ends, first.unit, look), told, class_="foot")
    return tag("div", tag("div", *drawn, class_="heats"), foot, class_="drawing")


def _rounded(values: Tensor) -> Tensor:
    values = values.double()
    return values.where(~(values.abs() < NOTHING), 0.0)


def _ends(values: Tensor) -> tuple[tuple[float, float], str]:
    """The scale, and its colours: around 0 where there are both signs, else from the least to the most if these are apart."""
    seen = values[values.isfinite()]
    if not seen.numel():
        return (0.0, 1.0), "weights"
    low, high = float(seen.min()), float(seen.max())
    if low < 0 < high:
        most = max(-low, high, LEAST)
        return (-most, most), "signed"
    if low >= 0 and (low < 0.5 * high or low == high):
        low, high = 0.0, max(high, LEAST)
    even = calm(Scale(low, high))
    return (even.low, even.high), "weights"


def _table(
    measure: Measure, layers: Sequence[int], run: str | None, ends: tuple[float, float], look: str
) -> Markup:
    heads = measure.values.shape[1]
    size = "crowd" if heads > CROWD else "many" if heads > MANY else None
    caption = tag("caption", breaking(run)) if run else None
    top = tag(
        "tr",
        tag("th", "layer", scope="col"),
        *(tag("th", str(head + 1), scope="col") for head in range(heads)),
    )
    rows = (
        tag(
            "tr",
            tag("th", str(layer), scope="row"),
            *(_cell(number, ends, look, bool(size)) for number in row),
        )
        for layer, row in zip(layers, _rounded(measure.values).tolist(), strict=True)
    )
    label = f"{measure.title}: rows are layers, columns are heads"
    names = " ".join(filter(None, ["heat", size]))
    return tag(
        "table",
        caption,
        tag("thead", top),
        tag("tbody", *rows),
        class_=names,
        role="grid",
        aria_label=label,
        data_run=run or "",
    )


def _cell(number: float, ends: tuple[float, float], look: str, tight: bool) -> Markup:
    if number != number:
        return tag("td", digits.NOTHING, class_="nothing", tabindex="-1", data_value=digits.NOTHING)
    level = round((LEVELS - 1) * min(max((number - ends[0]) / (ends[1] - ends[0]), 0.0), 1.0))
    strong = level > 9 if look == "weights" else abs(level - LEVELS // 2) > 4
    classes = f"{RAMPS[look].letter}{level}{' strong' if strong else ''}"
    words = (
        digits.short(number).replace("0.", ".", 1)
        if tight and abs(number) < 1
        else digits.short(number)
    )
    return tag(
        "td", tag("span", words), class_=classes, tabindex="-1", data_value=digits.value(number, 3)
    )
