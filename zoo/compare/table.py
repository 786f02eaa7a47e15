"""A comparison as text: a line for each place that answers it, and a table that a terminal shows as well as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from zoo.bench.result import told
from zoo.compare.ranking import Standing, ranking
from zoo.compare.results import TRAINED, Cell, Comparison, Variant
from zoo.compare.text import (
    answers,
    at,
    capital,
    decimals,
    listed,
    measured,
    name_extreme,
    question,
    spread,
    unfinished,
)
from zoo.reporting.numbers import format_fixed
from zoo.reporting.tables import format_markdown

MB = 2**20
TEXT = ("variant", "attention", "spread of seeds", "mind")  # columns that are no numbers
VERDICTS = {"within": "within", "beyond": "beyond", "unsure": "?", "missing": ""}


def table(comparison: Comparison) -> str:
    """The answers, a table for each place, what variants cost, and what is unfair."""
    parts = [
        "\n".join([f"# {question(comparison)}", "", *answers(comparison).values()]),
        unfinished(comparison),
    ]
    parts += [_place(comparison, place) for place in comparison.places]
    parts += [costs(comparison), _flags(comparison), conditions(comparison)]
    return "\n\n".join(part for part in parts if part)


def conditions(comparison: Comparison) -> str:
    """How it was measured, on what, and how it is repeated."""
    where = told(comparison.machine) if "processor" in comparison.machine else ""
    lines = [
        f"{measured(comparison)}: means over seeds {listed([str(seed) for seed in comparison.seeds], 20)} with 95 % intervals "
        "(Student's t); differences are paired by seed.",
        "; ".join(
            filter(None, (where, comparison.windows, f"zoo {comparison.zoo}", comparison.made))
        )
        + ".",
        f"{comparison.shared} weights that all variants have began equal; repeat it with: {comparison.command}",
    ]
    return "\n".join(lines)


def _place(comparison: Comparison, place: str) -> str:
    standings = [one for one in ranking(comparison, place) if one.mean is not None]
    if not standings:
        return ""
    head = ["variant", measured(comparison), "to the first", "spread of seeds", "seeds", "mind"]
    lines = [_line(comparison, place, one) for one in standings]
    kept = [
        column for column in range(len(head)) if column < 2 or any(line[column] for line in lines)
    ]
    rows = [[line[column] for column in kept] for line in lines]
    return f"## {capital(at(comparison, [place]))}\n\n{format_markdown([head[column] for column in kept], rows, TEXT)}"


def _line(comparison: Comparison, place: str, one: Standing) -> list[str]:
    places = decimals(comparison)
    assert one.mean is not None
    behind = "" if one.behind is None else spread(one.behind, places, sign=True)
    verdict = name_extreme(comparison) if one.verdict == "best" else VERDICTS[one.verdict]
    seeds, mind = str(one.mean.count), ", ".join(one.variant.marks)
    return [one.variant.name, spread(one.mean, places), behind, verdict, seeds, mind]


def costs(comparison: Comparison) -> str:
    """A table of what each variant has and takes; nothing where no cell began."""
    head = [
        "variant",
        "parameters",
        "attention",
        "steps",
        "step ms",
        "minutes",
        "peak MiB",
        "cells done",
    ]
    lines = [
        _cost(variant)
        for variant in comparison.variants
        if any(cell.parameters for cell in variant.cells)
    ]
    return f"## What it costs\n\n{format_markdown(head, lines, TEXT)}" if lines else ""


def _cost(variant: Variant) -> list[str]:
    step, minutes, memory = (
        _mean(variant.cells, key) for key in ("step_seconds", "minutes", "memory")
    )
    known = next(cell for cell in variant.cells if cell.parameters)
    steps = next((cell.steps for cell in variant.cells if cell.steps), None)
    return [
        variant.name,
        f"{known.parameters:,}",
        ", ".join(known.interpreters),
        "" if steps is None else f"{steps:,}",
        format_fixed(None if step is None else step * 1e3, 1),
        format_fixed(minutes, 2),
        format_fixed(None if memory is None else memory / MB, 0),
        f"{sum(cell.state == 'done' for cell in variant.cells)} of {len(variant.cells)}",
    ]


def _mean(cells: Sequence[Cell], key: str) -> float | None:
    found = [value for cell in cells if (value := getattr(cell, key)) is not None]
    return fmean(found) if found else None


def _flags(comparison: Comparison) -> str:
    flagged = [variant for variant in comparison.variants if variant.unfair]
    lines = [
        f"- {variant.name}: {'; '.join(flag.words for flag in variant.unfair)}"
        for variant in flagged
    ]
    lines += [f"- {name}: {why}" for name, why in _refused(comparison)]
    return "## To be minded\n\n" + "\n".join(lines) if lines else ""


def _refused(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Places that variants refuse, the reason once."""
    for variant in comparison.variants:
        found: dict[str, list[str]] = {}
        for cell in variant.cells[:1]:
            for place, why in cell.refused.items():
                found.setdefault(why, []).append(place)
        for why, places in found.items():
            yield (
                variant.name,
                f"refused {at(comparison, [place for place in places if place != TRAINED])}: {why}",
            )
