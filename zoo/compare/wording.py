"""Places, measures and numbers of a comparison in words, the same in its sentences, its page and its figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import floor, isfinite, log10

from zoo.compare.ranking import values
from zoo.compare.result import BY, TRAINED, Comparison, Kind
from zoo.compare.statistics import Estimate
from zoo.diagnostics.drawing import digits

UNITS: Mapping[Kind | None, str] = {"resolutions": "pixels", "lengths": "tokens"}
MOST = 6  # decimals


def measured(comparison: Comparison) -> str:
    """test/accuracy as people say it."""
    return comparison.measure.replace("/", " ")


def named(comparison: Comparison, place: str) -> str:
    """A place with its unit: 24 pixels."""
    if place == TRAINED:
        return comparison.trained or "the size of training"
    kind = comparison.kinds.get(place)
    if kind != "rules":
        return f"{place} {UNITS[kind]}" if kind in UNITS else place
    length, _, rule = place.partition(BY)
    unit = next((UNITS[one] for one in comparison.kinds.values() if one in UNITS), "")
    return " ".join(filter(None, (length, unit, f"by {rule}")))


def at(comparison: Comparison, places: Sequence[str]) -> str:
    """At 16, 24 and 32 pixels and on rotated: places of a sentence."""
    variants = [place for place in places if comparison.kinds.get(place) == "variants"]
    sizes = [named(comparison, place) for place in places if place not in variants]
    parts = [f"at {_united(sizes)}"] if sizes else []
    return listed([*parts, f"on {listed(variants, len(variants))}"] if variants else parts)


def _united(names: Sequence[str]) -> str:
    """With their unit once where all have it."""
    unit = names[-1].rpartition(" ")[2]
    if unit in UNITS.values() and all(name.endswith(f" {unit}") for name in names):
        names = [name.removesuffix(f" {unit}") for name in names[:-1]] + [names[-1]]
    return listed(names, len(names))


def size(comparison: Comparison, place: str) -> float | None:
    """The resolution or length of a place, None where it is not one number."""
    if place != TRAINED and comparison.kinds.get(place) not in UNITS:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?: \D*)?", named(comparison, place))
    return float(found[1]) if found else None


def listed(names: Sequence[str], most: int = 5) -> str:
    """One, two and three; of many, how many more there are."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} others"]
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def decimals(comparison: Comparison) -> int:
    """So many that the means of each place are told apart: three for 0.9125, more where they lie close."""
    needed = 0
    for place in comparison.places:
        means = [sum(found) / len(found) for one in comparison.variants
                 if (found := [*values(one, place, comparison.measure).values()])]  # fmt: skip
        largest = max(map(abs, means), default=0.0)
        apart = max(means, default=0.0) - min(means, default=0.0)
        least = 3 if 0.1 <= largest < 10 or largest == 0 else 2 - floor(log10(largest))
        close = -floor(log10(apart / 10)) if apart > 0 else 0
        needed = max(needed, least, min(close, least + 1))
    return min(max(needed, 0), MOST)


def number(value: float | None, places: int, *, sign: bool = False) -> str:
    """With so many decimals, or as few as a large number needs; a dash where there is none."""
    if value is None or not isfinite(value):
        return digits.NOTHING if value is None else digits.value(value)
    if abs(value) >= 1e5:
        return digits.value(value)
    words = f"{value:+.{places}f}" if sign else f"{value:.{places}f}"
    return words.replace("-", digits.MINUS)


def spread(found: Estimate, places: int, *, sign: bool = False) -> str:
    """A mean with its interval where it has one: 0.912 (0.905 to 0.919)."""
    mean = number(found.mean, places, sign=sign)
    if found.low is None:
        return mean
    return f"{mean} ({number(found.low, places, sign=sign)} to {number(found.high, places, sign=sign)})"


def capital(sentence: str) -> str:
    """With its first letter large."""
    return sentence[:1].upper() + sentence[1:]


def sentences(parts: Iterable[str]) -> str:
    """Each as a sentence of its own."""
    return " ".join(f"{capital(part)}." for part in parts if part)
