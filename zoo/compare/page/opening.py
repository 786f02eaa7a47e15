"""The first screen: the question, the answer in words, and the ranking."""

from __future__ import annotations

import re
from dataclasses import replace

from zoo.compare.page.ranks import ranks
from zoo.compare.ranking import lacking
from zoo.compare.results import Comparison, Variant
from zoo.compare.text import answer, at, capital, measured, question, summary, unfinished
from zoo.diagnostics.drawing.markup import UNSEEN, Markup, breaking, tag, together

BEGIN, END = "\x01", "\x02"  # around names in sentences: letters that no name keeps


def opening(comparison: Comparison) -> Markup:
    over = f"zoo {comparison.zoo} \u00b7 comparison \u00b7 {comparison.made}"
    waited = unfinished(comparison)
    return tag(
        "header",
        tag("p", over, class_="over"),
        tag("h1", breaking(question(comparison))),
        tag("p", waited, class_="open", role="status") if waited else None,
        tag("p", _named(summary(_marked(comparison))), class_="answer"),
        _figure(comparison),
        id="top",
    )


def _figure(comparison: Comparison) -> Markup:
    """The ranking, with a switch for the place that orders it and a sentence for each place."""
    marked = _marked(comparison)
    told = (
        tag(
            "p",
            _named(answer(marked, place)),
            class_="told-at",
            data_column=str(number),
            hidden=number > 0,
        )
        for number, place in enumerate(comparison.places)
    )
    caption = tag("figcaption", *told, tag("p", _legend(comparison), class_="how-read"))
    return tag(
        "figure",
        _switch(comparison),
        ranks(comparison),
        caption,
        _flagged(comparison),
        class_="several ranking",
    )


def _switch(comparison: Comparison) -> Markup | None:
    if len(comparison.places) < 2:
        return None
    choices = (
        tag(
            "label",
            tag("input", type="radio", name="place", value=str(number), checked=number == 0),
            tag("span", at(comparison, [place])),
        )
        for number, place in enumerate(comparison.places)
    )
    return tag("fieldset", tag("legend", "Ranked"), *choices, class_="switch")


def _legend(comparison: Comparison) -> str:
    high = comparison.better == "high"
    words = f"{capital(measured(comparison))}, {'higher' if high else 'lower'} is better."
    if len(comparison.seeds) < 2:
        return f"{words} A dot is one seed: there is no interval, and one seed cannot tell a difference from chance."
    marked = (
        " Under a name: what the variant has otherwise than most."
        if any(one.marks for one in comparison.variants)
        else ""
    )
    return (
        f"{words} A small dot is one seed, the large one their mean, the bar its 95 % interval. Within spread: the interval "
        f"of the differences to the best, seed by seed, holds 0. An arrow: further off than is drawn.{marked}"
    )


def _flagged(comparison: Comparison) -> Markup | None:
    """What is unfair or missing, in words."""
    rows = [
        (variant, told) for variant in comparison.variants if (told := _told(comparison, variant))
    ]
    if not rows:
        return None
    items = (
        tag("li", tag("b", breaking(variant.name)), ": ", "; ".join(told), ".")
        for variant, told in rows
    )
    return tag(
        "div", tag("h3", "Flagged or missing"), tag("ul", *items), class_="flags", id="flags"
    )


def _told(comparison: Comparison, variant: Variant) -> list[str]:
    missing: dict[str, list[str]] = {}
    for place in comparison.places:
        for why in lacking(variant, place, comparison.measure):
            if "failed" not in why:  # which the flags say
                missing.setdefault(why, []).append(place)
    told = (
        why if len(places) == len(comparison.places) else f"{at(comparison, places)} {why}"
        for why, places in missing.items()
    )
    return [*(flag.words for flag in variant.unfair), *told]


def _marked(comparison: Comparison) -> Comparison:
    """With letters around the names of variants by which they are found again in sentences."""
    variants = tuple(
        replace(one, name=f"{BEGIN}{UNSEEN.sub('', one.name)}{END}") for one in comparison.variants
    )
    return replace(comparison, variants=variants)


def _named(sentence: str) -> Markup:
    """A sentence with its names set off."""
    parts = re.split(f"{BEGIN}(.*?){END}", sentence, flags=re.DOTALL)
    return together(
        tag("b", breaking(part)) if number % 2 else part for number, part in enumerate(parts)
    )
