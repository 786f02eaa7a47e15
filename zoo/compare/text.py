"""The question of a comparison and sentences that answer it: who is first, and can seeds tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import floor, log10

from zoo.compare.ranking import Standing, ranking, values
from zoo.compare.results import BY, TRAINED, Comparison, Kind
from zoo.compare.statistics import Estimate
from zoo.reporting.numbers import format_fixed

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
        means = [
            sum(found) / len(found)
            for one in comparison.variants
            if (found := [*values(one, place, comparison.measure).values()])
        ]
        largest = max(map(abs, means), default=0.0)
        apart = max(means, default=0.0) - min(means, default=0.0)
        least = 3 if 0.1 <= largest < 10 or largest == 0 else 2 - floor(log10(largest))
        close = -floor(log10(apart / 10)) if apart > 0 else 0
        needed = max(needed, least, min(close, least + 1))
    return min(max(needed, 0), MOST)


def spread(found: Estimate, places: int, *, sign: bool = False) -> str:
    """A mean with its interval where it has one: 0.912 (0.905 to 0.919)."""
    mean = format_fixed(found.mean, places, sign=sign)
    if found.low is None:
        return mean
    return f"{mean} ({format_fixed(found.low, places, sign=sign)} to {format_fixed(found.high, places, sign=sign)})"


def name_extreme(comparison: Comparison) -> str:
    """Name what the first variant of a ranking has: highest mean, or lowest mean of a loss."""
    return f"{_extreme(comparison)} {'mean' if len(comparison.seeds) > 1 else 'value'}"


def _extreme(comparison: Comparison) -> str:
    return "highest" if comparison.better == "high" else "lowest"


def capital(sentence: str) -> str:
    """With its first letter large."""
    return sentence[:1].upper() + sentence[1:]


def sentences(parts: Iterable[str]) -> str:
    """Each as a sentence of its own."""
    return " ".join(f"{capital(part)}." for part in parts if part)


WAITED = ("running", "stopped", "waiting")  # states of cells that will have a value
ONE_SEED = "with one seed each, nothing tells a difference from chance"


def question(comparison: Comparison) -> str:
    """Which encoding, on vit_comrope?"""
    titles = [axis.title for axis in comparison.axes] or ["variant"]
    return f"Which {listed(titles)}, on {comparison.recipe}?"


def summary(comparison: Comparison) -> str:
    """One sentence for all neighbouring places that have the same answer."""
    told = [(place, _short(comparison, ranking(comparison, place))) for place in comparison.places]
    groups = [
        (words, [place for place, _ in group])
        for words, group in groupby(told, key=lambda pair: pair[1])
    ]
    alone = any(ONE_SEED in words for words, _ in groups)
    parts = [
        f"{at(comparison, places)} {words.replace(f'; {ONE_SEED}', '')}" for words, places in groups
    ]
    return sentences([*parts, ONE_SEED if alone else ""])


def answers(comparison: Comparison) -> dict[str, str]:
    """{place: sentences with the numbers}"""
    return {place: answer(comparison, place) for place in comparison.places}


def answer(comparison: Comparison, place: str) -> str:
    """Which has the highest mean at a place, which lie within the spread of seeds, which have no value, and what is unfair."""
    standings = ranking(comparison, place)
    where, there = at(comparison, [place]), [one for one in standings if one.mean]
    if not there:
        return sentences([f"{where} nothing is measured", *_missing(standings)])
    best = _names(there, "best")
    assert there[0].mean
    reached = f"{measured(comparison)} {spread(there[0].mean, decimals(comparison))}"
    first = f"{where} {_lead(comparison, best, there)}: {reached}; {_others(there)}"
    return sentences([first, *_missing(standings), *_unfair(there)])


def _lead(comparison: Comparison, best: Sequence[str], there: Sequence[Standing]) -> str:
    """Say who has the highest mean: a has the highest mean, a and b share the highest mean."""
    verb = "has" if len(best) == 1 else "share"
    what = "value" if _single(there) else "mean"
    return f"{listed(best)} {verb} the {_extreme(comparison)} {what}"


def _short(comparison: Comparison, standings: Sequence[Standing]) -> str:
    """Without numbers."""
    there = [one for one in standings if one.mean]
    if not there:
        waited = any(cell.state in WAITED for one in standings for cell in one.variant.cells)
        return "nothing is measured yet" if waited else "nothing is measured"
    best, near = _names(there, "best"), _names(there, "within")
    if len(there) == len(best):
        names = listed(best)
        if len(best) == 1:
            return f"{names} alone is measured"
        return f"{names} are alike, to the last digit of each seed"
    lead = _lead(comparison, best, there)
    if _names(there, "unsure"):
        return f"{lead}; {_unsure(there)}"
    if not near:
        return f"{lead}, by more than the spread of seeds"
    if 1 < len(near) == len(there) - len(best):
        return f"{lead}, but the others lie within the spread of seeds"
    return f"{lead}, but {listed(near)} {_lie(near)} within the spread of seeds"


def _others(there: Sequence[Standing]) -> str:
    near, far, unsure = (_names(there, verdict) for verdict in ("within", "beyond", "unsure"))
    if len(there) == len(_names(there, "best")):
        return "no other is measured there"
    if unsure:
        return _unsure(there) if not near and not far else f"{_told(near, far)}; {_unsure(there)}"
    return _told(near, far)


def _told(near: Sequence[str], far: Sequence[str]) -> str:
    """Which lie within the spread of seeds, and whether the others do."""
    if not near:
        return (
            f"{far[0]} does not lie within the spread of seeds"
            if len(far) == 1
            else "none of the others lies within the spread of seeds"
        )
    rest = "" if not far else f", {far[0]} does not" if len(far) == 1 else ", the others do not"
    return f"{listed(near)} {_lie(near)} within the spread of seeds{rest}"


def _unsure(there: Sequence[Standing]) -> str:
    if _single(there):
        return ONE_SEED
    unsure = [one for one in there if one.verdict == "unsure"]
    few = [one.variant.name for one in unsure if one.behind is None or one.behind.low is None]
    ahead = [one.variant.name for one in unsure if one.variant.name not in few]
    told = (
        [f"of {listed(few)} fewer than two seeds can be compared, which cannot tell"] if few else []
    )
    return "; ".join(
        [*told, f"on the seeds that both have, {listed(ahead)} {_is(ahead)} better"]
        if ahead
        else told
    )


def _single(there: Sequence[Standing]) -> bool:
    """Whether no variant has more than one seed."""
    return all(one.mean.count == 1 for one in there if one.mean)


def _names(standings: Sequence[Standing], verdict: str) -> list[str]:
    return [one.variant.name for one in standings if one.verdict == verdict]


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _lie(names: Sequence[str]) -> str:
    return "lies" if len(names) == 1 else "lie"


def _missing(standings: Sequence[Standing]) -> list[str]:
    """Variants without any value, by the reason."""
    told: dict[str, list[str]] = {}
    for one in standings:
        if one.verdict == "missing":
            told.setdefault("; ".join(one.lacking), []).append(one.variant.name)
    return [
        f"no value of {listed(names)}{f' ({why})' if why else ''}" for why, names in told.items()
    ]


def _unfair(there: Sequence[Standing]) -> list[str]:
    """Of those that the answer names as best or as good, what is not as in most; in full, where it is of one alone."""
    flagged = [
        one.variant for one in there if one.verdict in ("best", "within") and one.variant.marks
    ]
    if len(flagged) == 1:
        (one,) = flagged
        return [
            f"mind that {one.name} is flagged: {'; '.join(flag.words for flag in one.unfair if not flag.little)}"
        ]
    marked: dict[str, list[str]] = {}
    for one in flagged:
        for what in one.marks:
            marked.setdefault(what, []).append(one.name)
    told = [f"{what} of {listed(names)}" for what, names in marked.items()]
    return [f"not as in most: {'; '.join(told)}"] if told else []


def unfinished(comparison: Comparison) -> str:
    """How many cells are not done, by their state; nothing where none is waited for."""
    states = [cell.state for variant in comparison.variants for cell in variant.cells]
    waited = {state: states.count(state) for state in WAITED if state in states}
    if not waited:
        return ""
    others = listed([f"{count} {state}" for state, count in waited.items()])
    return f"Not finished: {states.count('done')} of {len(states)} cells are done, {others}."
