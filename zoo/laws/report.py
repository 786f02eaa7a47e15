"""Certificates as text: Markdown whose columns are aligned, so that a terminal shows it as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zoo.bench.result import pluralize
from zoo.laws import LAWS
from zoo.laws.certificate import PLACES, WAYS, Certificate, Finding, Rounding
from zoo.reporting.tables import format_markdown

ROUNDED = "Largest error of scores against float64, relative to 1 + |score|, of tokens at place 0 and at place"
SAID = {"kept": "kept", "broken": "BROKEN", "exempt": "does not apply"}
SIGNS = {"kept": "+", "broken": "X", "exempt": "."}
MEASURED = {
    "shift": "shifts_change_nothing",
    "future": "future_tokens_change_nothing",
    "decoding": "decoding_equals_one_pass",
    "sdpa": "reference_and_sdpa_agree",
    "chunks": "reference_and_chunks_agree",
    "flex": "reference_and_flex_agree",
    "compiled": "a_compiler_captures_it",
    "gradient": "gradients_are_slopes",
}
"""{column: law} of the table of figures."""


def shown(certificates: Sequence[Certificate]) -> str:
    """One as a whole; of several, what laws they keep, what was measured, and how they are rounded."""
    if len(certificates) == 1:
        return "\n\n".join(_certificate(certificates[0]))
    far = [
        f"{ROUNDED} {PLACES[-1]:,} (*: refused, or not finite; X: fails):",
        *rounded(certificates, PLACES[-1]),
    ]
    parts = [
        *figures(certificates),
        *(far if len(far) > 1 else []),
        matrix(certificates),
        *_sums(certificates),
    ]
    return "\n\n".join(parts)


def _certificate(one: Certificate) -> Iterator[str]:
    yield f"# {one.name}, on {axes_told(one.axes)}"
    for link, facts in one.facts.items():
        yield "\n".join(
            [f"{link} declares", *(f"  {fact}: {told}" for fact, told in facts.items())]
        )
    numbers = {law.name: number for number, law in enumerate(LAWS, start=1)}
    lines = [
        [str(numbers[finding.law]), finding.law, *_seen(finding, one.axes)]
        for finding in one.findings
    ]
    yield format_markdown(
        ["", "law", "outcome", "seen", "bound", "remark"],
        lines,
        ("law", "outcome", "bound", "remark"),
    )
    if one.roundings:
        places = [
            [f"{place:,}", *(_error(_at(one, way, place)) for way in WAYS)] for place in PLACES
        ]
        why = sorted(
            {rounding.why for rounding in one.roundings if rounding.why and not rounding.broken}
        )
        yield f"{ROUNDED} ...\n\n{format_markdown(['place', *map(_way, WAYS)], places)}"
        yield from ([f"*: {'; '.join(why)}"] if why else [])
    yield from _sums([one])


def axes_told(axes: Sequence[int]) -> str:
    """In words."""
    *before, last = map(str, axes)
    return (
        f"{', '.join(before)} and {last} axes"
        if before
        else f"{last} {'axis' if last == '1' else 'axes'}"
    )


def _seen(finding: Finding, axes: Sequence[int]) -> list[str]:
    """Outcome, number, bound, and why it does not apply or where it was tried if not everywhere; faults are told below."""
    figure = finding.figure
    numbers = [f"{figure.value:.1e}", figure.limit] if figure else ["", ""]
    where = (
        "" if not finding.axes or finding.axes == tuple(axes) else f"on {axes_told(finding.axes)}"
    )
    return [SAID[finding.outcome], *numbers, finding.told if finding.outcome == "exempt" else where]


def matrix(certificates: Sequence[Certificate]) -> str:
    """A line for each encoding and a column for each law, which are listed below by their numbers."""
    numbers = {law.name: str(number) for number, law in enumerate(LAWS, start=1)}
    met = [
        law
        for law in LAWS
        if any(law.name == one.law for each in certificates for one in each.findings)
    ]
    lines = []
    for each in certificates:
        signs = {one.law: SIGNS[one.outcome] for one in each.findings}
        lines.append([each.name, *(signs.get(law.name, "") for law in met)])
    legend = "\n".join(f"{numbers[law.name]:>2}. `{law.name}`: {law.says}" for law in met)
    read = f"{SIGNS['kept']} kept, {SIGNS['broken']} broken, {SIGNS['exempt']} does not apply"
    return f"{format_markdown(['encoding', *(numbers[law.name] for law in met)], lines, ('encoding',))}\n\n{read}\n\n{legend}"


def figures(certificates: Sequence[Certificate]) -> Iterator[str]:
    """The errors of what is most often asked, none where it does not apply or fused kernels refuse."""
    met = {one.law for each in certificates for one in each.findings}
    columns = {column: law for column, law in MEASURED.items() if law in met}
    lines = []
    for each in certificates:
        found = {one.law: one.figure for one in each.findings}
        values = (found.get(law) for law in columns.values())
        lines.append([each.name, *(f"{value.value:.0e}" if value else "" for value in values)])
    if columns:
        yield format_markdown(["encoding", *columns], lines, ("encoding",))


def rounded(certificates: Sequence[Certificate], place: int) -> Iterator[str]:
    """How far off scores are at a place, in each way to round."""
    some = [one for one in certificates if one.roundings]
    if some:
        lines = [[one.name, *(_error(_at(one, way, place)) for way in WAYS)] for one in some]
        yield format_markdown(["encoding", *map(_way, WAYS)], lines, ("encoding",))


def _at(one: Certificate, way: tuple[str, str], place: int) -> Rounding | None:
    found = (
        each for each in one.roundings if (each.heads, each.weights, each.place) == (*way, place)
    )
    return next(found, None)


def _error(one: Rounding | None) -> str:
    if one is None or one.broken:
        return "" if one is None else SIGNS["broken"]
    return "*" if one.error is None else f"{one.error:.0e}"


def _way(way: tuple[str, str]) -> str:
    heads, weights = way
    return (
        heads
        if heads == weights == "float32"
        else f"{heads}, weights too"
        if heads == weights
        else heads
    )


def _sums(certificates: Sequence[Certificate]) -> Iterator[str]:
    """How many laws each outcome has; and that of a work that was stopped."""
    counts = {outcome: sum(len(one.of(outcome)) for one in certificates) for outcome in SIGNS}
    told = f"{pluralize(len(certificates), 'encoding')}: laws kept {counts['kept']:,}, broken {counts['broken']}, "
    partial = (
        "; PARTIAL: stopped before its end" if any(one.partial for one in certificates) else ""
    )
    yield f"{told}not applying {counts['exempt']}; zoo {certificates[0].zoo}, torch {certificates[0].torch}{partial}"
