"""How a comparison was made: what repeats it, on which machine, and what was held equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zoo.compare.grid import within
from zoo.compare.results import Comparison
from zoo.compare.statistics import LEVEL
from zoo.compare.text import measured, named
from zoo.config import dump
from zoo.diagnostics.document.folded import folded
from zoo.diagnostics.drawing.markup import Markup, breaking, tag


def made(comparison: Comparison) -> Markup:
    facts = (
        tag(
            "div",
            tag("dt", title),
            tag("dd", breaking(words)),
            class_="long" if len(words) > 60 else None,
        )
        for title, words in _facts(comparison)
        if words
    )
    return tag(
        "div",
        tag("pre", tag("code", comparison.command), tabindex="0"),
        tag("dl", *facts, class_="facts"),
        class_="made",
    )


def recipe(comparison: Comparison) -> Markup:
    lines = dump(comparison.base).splitlines()
    return folded(comparison.recipe, lines, lines)


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "recipe", comparison.recipe
    for axis in comparison.axes:
        yield axis.key, ", ".join(axis.values)
    yield "seeds", ", ".join(map(str, comparison.seeds))
    yield (
        "measure",
        f"{measured(comparison)}, {'higher' if comparison.better == 'high' else 'lower'} is better",
    )
    yield "places", ", ".join(named(comparison, place) for place in comparison.places)
    yield "windows", comparison.windows
    yield from ((key, _words(value)) for key, value in comparison.machine.items())
    yield "made", f"{comparison.made}, zoo {comparison.zoo}"
    yield "held equal", _equal(comparison)
    yield (
        "intervals",
        (
            f"Student's, {LEVEL:.0%}, over seeds; those of differences over seeds that both have. They are not widened for how "
            "many variants are compared with the best of them: of 32 that are truly equal one in seven would seem worse."
        ),
    )


def _equal(comparison: Comparison) -> str:
    words = "of each seed, the order of samples"
    if not any(within(axis.key, "data") for axis in comparison.axes):
        words += ", the test samples"
    if comparison.shared:
        words += (
            f" and the initial values of the {comparison.shared} weights that all variants have"
        )
    differing = any(cell.differs for variant in comparison.variants for cell in variant.cells)
    return f"{words}{', but where a cell says otherwise' if differing else ''}"


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(one)}" for key, one in value.items())
    return ", ".join(map(_words, value)) if isinstance(value, (list, tuple)) else str(value)
