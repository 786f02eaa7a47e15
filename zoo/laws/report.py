"""Certificates as text: one in full, or tables that summarize several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zoo.laws import LAWS
from zoo.laws.certificate import DTYPES, POSITIONS, Certificate, Finding, Rounding
from zoo.reporting.numbers import pluralize
from zoo.reporting.tables import format_markdown
from zoo.suggestions import join_words

ROUNDING_TITLE = (
    "Largest error of scores against float64, relative to 1 + |score|, of tokens at position 0 and"
    " at position"
)
OUTCOMES = {"kept": "kept", "broken": "BROKEN", "exempt": "does not apply"}
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
"""{column of the table of measurements: law}."""


def format_certificates(certificates: Sequence[Certificate]) -> str:
    """Return one certificate in full, or tables that summarize several."""
    if len(certificates) == 1:
        return "\n\n".join(_format_certificate(certificates[0]))
    parts = [*measurement_table(certificates)]
    if any(certificate.roundings for certificate in certificates):
        title = f"{ROUNDING_TITLE} {POSITIONS[-1]:,} (*: refused, or not finite; X: fails):"
        parts += [title, *rounding_table(certificates, POSITIONS[-1])]
    return "\n\n".join([*parts, law_table(certificates), _summarise(certificates)])


def _format_certificate(certificate: Certificate) -> Iterator[str]:
    yield f"# {certificate.name}, on {describe_axes(certificate.axes)}"
    for link, facts in certificate.facts.items():
        lines = [f"  {fact}: {description}" for fact, description in facts.items()]
        yield "\n".join([f"{link} declares", *lines])
    numbers = _number_laws()
    rows = [
        [numbers[finding.law], finding.law, *_outcome(finding, certificate.axes)]
        for finding in certificate.findings
    ]
    text_columns = ("law", "outcome", "bound", "remark")
    yield format_markdown(["", "law", "outcome", "measured", "bound", "remark"], rows, text_columns)
    if certificate.roundings:
        rows = []
        for position in POSITIONS:
            errors = [_error(_find_rounding(certificate, dtypes, position)) for dtypes in DTYPES]
            rows.append([f"{position:,}", *errors])
        table = format_markdown(["position", *map(_dtype_title, DTYPES)], rows)
        yield f"{ROUNDING_TITLE} ...\n\n{table}"
        reasons = {
            rounding.reason
            for rounding in certificate.roundings
            if rounding.reason and not rounding.broken
        }
        yield from ([f"*: {'; '.join(sorted(reasons))}"] if reasons else [])
    yield _summarise([certificate])


def describe_axes(axes: Sequence[int]) -> str:
    """Return numbers of axes as text, such as "1, 2 and 3 axes"."""
    return f"{join_words(axes)} {'axis' if [*axes] == [1] else 'axes'}"


def _number_laws() -> dict[str, str]:
    return {law.name: str(number) for number, law in enumerate(LAWS, start=1)}


def _outcome(finding: Finding, axes: Sequence[int]) -> list[str]:
    """Return the outcome, the measured value, its bound, and a remark.

    The remark is the reason of an exemption, or the axes if they are not all.
    """
    value, bound, remark = "", "", ""
    if finding.measurement:
        value, bound = f"{finding.measurement.value:.1e}", finding.measurement.bound_text
    if finding.outcome == "exempt":
        remark = finding.detail
    elif finding.axes and finding.axes != tuple(axes):
        remark = f"on {describe_axes(finding.axes)}"
    return [OUTCOMES[finding.outcome], value, bound, remark]


def law_table(certificates: Sequence[Certificate]) -> str:
    """Return a table with a row per encoding and a column per law, followed by a legend."""
    numbers = _number_laws()
    tried = {finding.law for certificate in certificates for finding in certificate.findings}
    laws = [law for law in LAWS if law.name in tried]
    rows = []
    for certificate in certificates:
        signs = {finding.law: SIGNS[finding.outcome] for finding in certificate.findings}
        rows.append([certificate.name, *(signs.get(law.name, "") for law in laws)])
    legend = "\n".join(f"{numbers[law.name]:>2}. `{law.name}`: {law.statement}" for law in laws)
    key = f"{SIGNS['kept']} kept, {SIGNS['broken']} broken, {SIGNS['exempt']} does not apply"
    table = format_markdown(["encoding", *(numbers[law.name] for law in laws)], rows, ("encoding",))
    return f"{table}\n\n{key}\n\n{legend}"


def measurement_table(certificates: Sequence[Certificate]) -> Iterator[str]:
    """Yield a table of the main errors, with empty cells for laws without a measurement."""
    tried = {finding.law for certificate in certificates for finding in certificate.findings}
    columns = {column: law for column, law in MEASURED.items() if law in tried}
    rows = []
    for certificate in certificates:
        measurements = {finding.law: finding.measurement for finding in certificate.findings}
        values = (measurements.get(law) for law in columns.values())
        rows.append(
            [certificate.name, *(f"{value.value:.0e}" if value else "" for value in values)]
        )
    if columns:
        yield format_markdown(["encoding", *columns], rows, ("encoding",))


def rounding_table(certificates: Sequence[Certificate], position: int) -> Iterator[str]:
    """Yield a table of the rounding errors of scores at a position, for each pair of dtypes."""
    rows = []
    for certificate in certificates:
        if certificate.roundings:
            errors = [_error(_find_rounding(certificate, dtypes, position)) for dtypes in DTYPES]
            rows.append([certificate.name, *errors])
    if rows:
        yield format_markdown(["encoding", *map(_dtype_title, DTYPES)], rows, ("encoding",))


def _find_rounding(
    certificate: Certificate, dtypes: tuple[str, str], position: int
) -> Rounding | None:
    for rounding in certificate.roundings:
        if (rounding.head_dtype, rounding.weight_dtype, rounding.position) == (*dtypes, position):
            return rounding
    return None


def _error(rounding: Rounding | None) -> str:
    if rounding is None:
        return ""
    if rounding.broken:
        return SIGNS["broken"]
    return "*" if rounding.error is None else f"{rounding.error:.0e}"


def _dtype_title(dtypes: tuple[str, str]) -> str:
    heads, weights = dtypes
    return f"{heads}, weights too" if heads == weights != "float32" else heads


def _summarise(certificates: Sequence[Certificate]) -> str:
    """Count the laws by outcome."""
    counts = {
        outcome: sum(len(certificate.with_outcome(outcome)) for certificate in certificates)
        for outcome in SIGNS
    }
    outcomes = (
        f"laws kept {counts['kept']:,}, broken {counts['broken']}, not applying {counts['exempt']}"
    )
    versions = f"zoo {certificates[0].zoo}, torch {certificates[0].torch}"
    partial = any(certificate.partial for certificate in certificates)
    end = "; PARTIAL: stopped before its end" if partial else ""
    return f"{pluralize(len(certificates), 'encoding')}: {outcomes}; {versions}{end}"
