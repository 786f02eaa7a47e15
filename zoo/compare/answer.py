"""The question of a comparison, and sentences that answer it: which variant is best, and whether seeds can tell."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from zoo.compare.ranking import Standing, ranking
from zoo.compare.result import Comparison
from zoo.compare.wording import at, decimals, listed, measured, sentences, spread

WAITED = ("running", "stopped", "waiting")  # states of cells that will have a value
ONE_SEED = "with one seed each, nothing tells a difference from chance"


def question(comparison: Comparison) -> str:
    """Which encoding, on vit_comrope?"""
    titles = [axis.title for axis in comparison.axes] or ["variant"]
    return f"Which {listed(titles)}, on {comparison.recipe}?"


def summary(comparison: Comparison) -> str:
    """One sentence for all neighbouring places that have the same answer."""
    told = [(place, _short(ranking(comparison, place))) for place in comparison.places]
    groups = [(words, [place for place, _ in group]) for words, group in groupby(told, key=lambda pair: pair[1])]
    alone = any(ONE_SEED in words for words, _ in groups)
    parts = [f"{at(comparison, places)} {words.replace(f'; {ONE_SEED}', '')}" for words, places in groups]
    return sentences([*parts, ONE_SEED if alone else ""])


def answers(comparison: Comparison) -> dict[str, str]:
    """{place: sentences with the numbers}"""
    return {place: answer(comparison, place) for place in comparison.places}


def answer(comparison: Comparison, place: str) -> str:
    """Which is best at a place, which lie within the spread of seeds, which have no value, and what is unfair."""
    standings = ranking(comparison, place)
    where, there = at(comparison, [place]), [one for one in standings if one.mean]
    if not there:
        return sentences([f"{where} nothing is measured", *_missing(standings)])
    best = _names(there, "best")
    assert there[0].mean
    reached = f"{measured(comparison)} {spread(there[0].mean, decimals(comparison))}"
    first = f"{where} {listed(best)} {_is(best)} best{_alike(best)}: {reached}; {_others(there)}"
    return sentences([first, *_missing(standings), *_unfair(there)])


def _short(standings: Sequence[Standing]) -> str:
    """Without numbers."""
    there = [one for one in standings if one.mean]
    if not there:
        waited = any(cell.state in WAITED for one in standings for cell in one.variant.cells)
        return "nothing is measured yet" if waited else "nothing is measured"
    best, near = _names(there, "best"), _names(there, "within")
    names, have = listed(best), "has" if len(best) == 1 else "have"
    if len(there) == len(best):
        return f"{names} alone is measured" if len(best) == 1 else f"{names} are alike, to the last digit of each seed"
    if _names(there, "unsure"):
        return f"{names} {have} the best {'value' if _single(there) else 'mean'}; {_unsure(there)}"
    if not near:
        return f"{names} {_is(best)} best{_alike(best)}, by more than the spread of seeds"
    if 1 < len(near) == len(there) - len(best):
        return f"{names} {have} the best mean, but the others lie within the spread of seeds"
    return f"{names} {have} the best mean, but {listed(near)} {_lie(near)} within the spread of seeds"


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
    told = [f"of {listed(few)} fewer than two seeds can be compared, which cannot tell"] if few else []
    return "; ".join([*told, f"on the seeds that both have, {listed(ahead)} {_is(ahead)} better"] if ahead else told)


def _single(there: Sequence[Standing]) -> bool:
    """Whether no variant has more than one seed."""
    return all(one.mean.count == 1 for one in there if one.mean)


def _names(standings: Sequence[Standing], verdict: str) -> list[str]:
    return [one.variant.name for one in standings if one.verdict == verdict]


def _alike(best: Sequence[str]) -> str:
    return "" if len(best) == 1 else " alike"


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
    return [f"no value of {listed(names)}{f' ({why})' if why else ''}" for why, names in told.items()]


def _unfair(there: Sequence[Standing]) -> list[str]:
    """Of those that the answer names as best or as good, what is not as in most; in full, where it is of one alone."""
    flagged = [one.variant for one in there if one.verdict in ("best", "within") and one.variant.marks]
    if len(flagged) == 1:
        (one,) = flagged
        return [f"mind that {one.name} is flagged: {'; '.join(flag.words for flag in one.unfair if not flag.little)}"]
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
