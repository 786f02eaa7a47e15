"""`zoo verify ENCODING|all`: check encodings against the laws, write and print certificates."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Literal

import torch

from zoo import files, registry
from zoo.attention.encoding import describe_facts
from zoo.config.command_line import parse_encodings, parse_options
from zoo.config.tree import collect_issues
from zoo.encodings.common.chains import build_shortest_chain, format_chain
from zoo.errors import (
    ARGUMENT,
    ConfigIssue,
    DataError,
    OptionError,
    RecipeError,
    Stopped,
    ZooError,
    nearest,
)
from zoo.laws import LAWS, Case, Law
from zoo.laws.certificate import (
    DTYPES,
    POSITIONS,
    Certificate,
    Finding,
    Rounding,
    examine,
    measure_roundings,
)
from zoo.options import Choice
from zoo.options.signature import EveryEncoding
from zoo.reporting.numbers import pluralize
from zoo.reporting.tables import format_markdown
from zoo.utils import Ticker, check_writable, format_now, stop_on_signal
from zoo.version import __version__

ALL = "all"
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
Axes = Literal[1, 2, 3]


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Options of `zoo verify`, in addition to those of the encoding."""

    axes: Axes | tuple[Axes, ...] | None = None
    """Numbers of axes to verify; null: all that the encoding accepts."""

    laws: tuple[str, ...] | None = None
    """Names of laws to check; null: all laws, and the rounding errors of scores."""

    to: str | None = None
    """Folder for certificates, one NAME.json per encoding."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An encoding, or a list of them, with a case for each number of axes to verify."""

    name: str
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The certificates of verified encodings.

    Attributes:
        certificates: One for each encoding that was started.
        requested: Number of encodings to verify.
        stopped: Signal that ended the work early.
    """

    certificates: tuple[Certificate, ...]
    requested: int
    stopped: Signals | None


def _refuse(key: str, problem: str, remedy: str = "") -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, key, problem, remedy))


def select_candidates(words: Sequence[str]) -> tuple[VerifyOptions, list[Law], list[Candidate]]:
    """Parse the arguments of `zoo verify`.

    Returns:
        The options, the laws to check, and the encodings to verify.

    Raises:
        RecipeError: Some arguments are wrong; all issues are reported together.
    """
    assignments = [word for word in words if word.partition("=")[0].isidentifier() and "=" in word]
    names = [word for word in words if word not in assignments]
    issues: list[ConfigIssue] = []
    options = VerifyOptions()
    own: dict[str, object] = {}
    candidates: list[Candidate] = []

    # Collect the issues of all arguments, so that a user sees them at once.
    with collect_issues(issues):
        options, own = _parse_options(assignments, names)
    with collect_issues(issues):
        laws = _select_laws(options.laws)
    with collect_issues(issues):
        for choices in _parse_chains(names, own):
            with collect_issues(issues):
                candidates += _make_candidate(choices, options.axes, names == [ALL])

    if not issues and not candidates:
        issues.append(ConfigIssue(ARGUMENT, "axes", "no encoding takes so many", "leave it out"))
    if issues:
        raise RecipeError(*dict.fromkeys(issues))
    return options, laws, candidates


def _parse_options(
    assignments: Sequence[str], names: Sequence[str]
) -> tuple[VerifyOptions, dict[str, object]]:
    """Separate the options of the command from those of a single encoding."""
    alone = len(names) == 1 and names[0] in registry.names("encodings")
    classes = (registry.find("encodings", names[0]), EveryEncoding) if alone else ()
    options, *groups = parse_options(assignments, (VerifyOptions, *classes))
    given = {word.partition("=")[0] for word in assignments}
    own = {key: value for group in groups for key, value in group.items() if key in given}
    return VerifyOptions(**options), own


def _select_laws(names: tuple[str, ...] | None) -> list[Law]:
    if names == ():
        raise _refuse("laws", "empty list", "omit it to check all laws")
    known = {law.name: law for law in LAWS}
    issues = []
    for name in names or ():
        if name not in known:
            remedy = nearest(name, known)
            issues.append(ConfigIssue(ARGUMENT, "laws", f"there is no law {name!r}", remedy))
    if issues:
        raise RecipeError(*issues)
    return [law for law in LAWS if names is None or law.name in names]


def _parse_chains(names: Sequence[str], own: dict[str, object]) -> list[list[Choice]]:
    """Return the encodings of each name; one that needs biases follows an encoding with biases."""
    if not names:
        raise _refuse("", "no encoding", "name one, or all; see zoo list encodings")
    if list(names) == [ALL]:
        classes = [registry.find("encodings", name) for name in registry.names("encodings")]
        return [build_shortest_chain(cls) for cls in classes]

    # The dictionary drops encodings that are named twice.
    chains = []
    for choices in {format_chain(one): one for one in parse_encodings(names)}.values():
        if len(choices) == 1:
            cls, options = registry.find("encodings", choices[0].name), choices[0].options
            chains.append(build_shortest_chain(cls, {**options, **own}))
        else:
            chains.append([*choices])
    return chains


def _make_candidate(
    choices: Sequence[Choice], axes: Axes | tuple[Axes, ...] | None, among_all: bool
) -> list[Candidate]:
    """Return a candidate; none if all encodings were requested and it accepts none of the axes."""
    name = format_chain(choices)
    classes = [registry.find("encodings", choice.name) for choice in choices]
    if any("coordinates" in choice.options for choice in choices):
        problem = "laws give coordinates to the encoding directly, so no convention applies"
        raise _refuse(f"{name}: coordinates", problem, "leave it out")

    # A chain accepts the numbers of axes that all of its encodings accept.
    accepted = [number for number in (1, 2, 3) if all(number in cls.axes for cls in classes)]
    wanted = accepted if axes is None else sorted({axes} if isinstance(axes, int) else {*axes})
    refused = [number for number in wanted if number not in accepted]
    if among_all:
        wanted = [number for number in wanted if number in accepted]
    elif refused or not wanted:
        remedy = f"it takes {' or '.join(map(str, accepted))}"
        if not accepted:
            remedy = "no number of axes suits all encodings of the list"
        raise _refuse("axes", f"{name} does not take {refused or axes}", remedy)

    # Build each case once: an encoding that cannot be built is an error of the arguments.
    cases = tuple(Case.from_choices(name, choices, number) for number in wanted)
    try:
        for case in cases:
            case.build()
    except OptionError as error:
        raise _refuse(f"{name}: {error.key}", str(error)) from None
    # An encoding under development may raise anything.
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise _refuse(name, f"it cannot be built, {type(error).__name__}: {reason}") from None
    return [Candidate(name=name, cases=cases)] if cases else []


def verify(words: Sequence[str], plugins: Sequence[str]) -> Verification:
    """Check encodings against the laws, and write certificates if a folder is given.

    Args:
        words: Arguments of `zoo verify`.
        plugins: Modules given by `--plugin`.

    Raises:
        RecipeError: Some arguments are wrong; nothing was checked.
    """
    options, laws, candidates = select_candidates(words)
    paths = _choose_paths(options.to, [candidate.name for candidate in candidates])
    plugin_words = [word for plugin in plugins for word in ("--plugin", plugin)]
    command = shlex.join(["zoo", "verify", *words, *plugin_words])

    certificates: list[Certificate] = []
    ticker = Ticker()
    with stop_on_signal() as received:
        for number, candidate in enumerate(candidates, start=1):
            title = f"{candidate.name} ({number} of {len(candidates)})"
            work = _Examination(candidate, command)
            try:
                for law in work.run(laws, with_rounding=options.laws is None):
                    ticker(f"{title}: {law}")
            # An interrupted encoding has a partial certificate.
            finally:
                certificates.append(work.certify())
            if paths:
                text = write_json(certificates[-1].to_dict())
                files.write(io.BytesIO(f"{text}\n".encode()), paths[candidate.name])
    ticker("")
    return Verification(
        certificates=tuple(one for one in certificates if one.findings),
        requested=len(candidates),
        stopped=next(iter(received), None),
    )


def write_json(data: object) -> str:
    """Format data as JSON text, without NaN or infinity."""
    return json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False)


def raise_if_broken(result: Verification) -> None:
    """Report broken laws.

    Raises:
        ZooError: Laws are broken. The message has the measurements and their bounds.
        Stopped: A signal ended the work early.
    """
    # One entry per broken law: where, how, and the law itself.
    statements = {law.name: law.statement for law in LAWS}
    lines, failures, count = [], [], 0
    for one in result.certificates:
        for finding in one.with_outcome("broken"):
            count += 1
            where = f"{one.name}, on {describe_axes(finding.axes)}"
            lines.append(f"  {where}: {finding.law}: {finding.detail}")
            lines.append(f"    the law: {statements[finding.law]}")
        reasons = [rounding.reason for rounding in one.roundings if rounding.broken]
        failures += [f"  {one.name}: rounding: {reason}" for reason in dict.fromkeys(reasons)]

    summary = "1 law is broken" if count == 1 else f"{count} laws are broken"
    if failures:
        summary += ", and scores in less than float64 fail"
    lines += failures
    # After a signal, the message also states the progress.
    if result.stopped:
        done = sum(not one.partial for one in result.certificates)
        progress = f"{done} of {pluralize(result.requested, 'encoding')} checked"
        head = f"stopped by {result.stopped.name}; {progress}, {summary} so far"
        raise Stopped(result.stopped, "\n".join([head, *lines]))
    if lines:
        raise ZooError("\n".join([summary, *lines]))


class _Examination:
    """The laws that were checked on a candidate so far; `certify` may be called at any time."""

    def __init__(self, candidate: Candidate, command: str) -> None:
        self.candidate, self.command = candidate, command
        self.findings: list[Finding] = []
        self.roundings: list[Rounding] = []
        self.partial = True

    def run(self, laws: Sequence[Law], with_rounding: bool) -> Iterator[str]:
        """Check the laws, and yield the name of each before its check."""
        for law in laws:
            yield law.name
            self.findings.append(examine(law, self.candidate.cases))
        if with_rounding:
            yield "rounding"
            self.roundings += measure_roundings(self.candidate.cases)
        self.partial = False

    def certify(self) -> Certificate:
        cases = self.candidate.cases
        links = cases[0].facts.named_children()
        return Certificate(
            name=self.candidate.name,
            facts={name: describe_facts(link) for name, link in links},  # type: ignore[arg-type]
            axes=tuple(case.axes for case in cases),
            findings=tuple(self.findings),
            roundings=tuple(self.roundings),
            zoo=__version__,
            torch=torch.__version__,
            created=format_now(),
            command=self.command,
            partial=self.partial,
        )


def _choose_paths(to: str | None, names: Sequence[str]) -> dict[str, Path]:
    """Return the file of each certificate.

    Raises:
        RecipeError: A file cannot be written, or would overwrite a file that is no certificate.
    """
    if to is None:
        return {}
    folder = Path(to)
    try:
        folder.mkdir(exist_ok=True)
        check_writable(folder)
    except OSError as error:
        problem = f"{folder} cannot be written, {error.strerror or error}"
        raise _refuse("to", problem, "name another folder") from None

    paths = {name: folder / f"{re.sub(r'[^A-Za-z0-9_+(),=.-]', '-', name)}.json" for name in names}
    # Overwrite certificates, but nothing else.
    for path in paths.values():
        try:
            if path.exists():
                Certificate.read(path)
        except DataError as error:
            raise _refuse("to", str(error), "name another folder, or remove it") from None
        except OSError:
            problem = f"{path} cannot be read"
            raise _refuse("to", problem, "name another folder, or remove it") from None
    return paths


def render(certificates: Sequence[Certificate]) -> str:
    """Return one certificate in full, or tables that summarize several."""
    if len(certificates) == 1:
        return "\n\n".join(_render_one(certificates[0]))
    parts = [*measurement_table(certificates)]
    if any(one.roundings for one in certificates):
        title = f"{ROUNDING_TITLE} {POSITIONS[-1]:,} (*: refused, or not finite; X: fails):"
        parts += [title, *rounding_table(certificates, POSITIONS[-1])]
    return "\n\n".join([*parts, law_table(certificates), _summarise(certificates)])


def _render_one(one: Certificate) -> Iterator[str]:
    yield f"# {one.name}, on {describe_axes(one.axes)}"
    for link, facts in one.facts.items():
        lines = [f"  {fact}: {description}" for fact, description in facts.items()]
        yield "\n".join([f"{link} declares", *lines])
    # The outcome of each law, then the rounding errors by position and dtypes.
    numbers = _number_laws()
    rows = [[numbers[each.law], each.law, *_outcome(each, one.axes)] for each in one.findings]
    text = ("law", "outcome", "bound", "remark")
    yield format_markdown(["", "law", "outcome", "measured", "bound", "remark"], rows, text)
    if one.roundings:
        rows = []
        for position in POSITIONS:
            errors = [_error(_find_rounding(one, dtypes, position)) for dtypes in DTYPES]
            rows.append([f"{position:,}", *errors])
        table = format_markdown(["position", *map(_dtype_title, DTYPES)], rows)
        yield f"{ROUNDING_TITLE} ...\n\n{table}"
        reasons = {each.reason for each in one.roundings if each.reason and not each.broken}
        yield from ([f"*: {'; '.join(sorted(reasons))}"] if reasons else [])
    yield _summarise([one])


def describe_axes(axes: Sequence[int]) -> str:
    """Return numbers of axes as text, such as "1, 2 and 3 axes"."""
    *before, last = map(str, axes)
    if before:
        return f"{', '.join(before)} and {last} axes"
    return f"{last} {'axis' if last == '1' else 'axes'}"


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
    # Laws are columns by number, because their names would be too wide.
    numbers = _number_laws()
    tried = {finding.law for one in certificates for finding in one.findings}
    laws = [law for law in LAWS if law.name in tried]
    rows = []
    for one in certificates:
        signs = {finding.law: SIGNS[finding.outcome] for finding in one.findings}
        rows.append([one.name, *(signs.get(law.name, "") for law in laws)])
    legend = "\n".join(f"{numbers[law.name]:>2}. `{law.name}`: {law.statement}" for law in laws)
    key = f"{SIGNS['kept']} kept, {SIGNS['broken']} broken, {SIGNS['exempt']} does not apply"
    table = format_markdown(["encoding", *(numbers[law.name] for law in laws)], rows, ("encoding",))
    return f"{table}\n\n{key}\n\n{legend}"


def measurement_table(certificates: Sequence[Certificate]) -> Iterator[str]:
    """Yield a table of the main errors, with empty cells for laws without a measurement."""
    tried = {finding.law for one in certificates for finding in one.findings}
    columns = {column: law for column, law in MEASURED.items() if law in tried}
    rows = []
    for one in certificates:
        found = {finding.law: finding.measurement for finding in one.findings}
        values = (found.get(law) for law in columns.values())
        rows.append([one.name, *(f"{value.value:.0e}" if value else "" for value in values)])
    if columns:
        yield format_markdown(["encoding", *columns], rows, ("encoding",))


def rounding_table(certificates: Sequence[Certificate], position: int) -> Iterator[str]:
    """Yield a table of the rounding errors of scores at a position, for each pair of dtypes."""
    rows = []
    for one in certificates:
        if one.roundings:
            errors = [_error(_find_rounding(one, dtypes, position)) for dtypes in DTYPES]
            rows.append([one.name, *errors])
    if rows:
        yield format_markdown(["encoding", *map(_dtype_title, DTYPES)], rows, ("encoding",))


def _find_rounding(one: Certificate, dtypes: tuple[str, str], position: int) -> Rounding | None:
    for each in one.roundings:
        if (each.head_dtype, each.weight_dtype, each.position) == (*dtypes, position):
            return each
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
        outcome: sum(len(one.with_outcome(outcome)) for one in certificates) for outcome in SIGNS
    }
    outcomes = (
        f"laws kept {counts['kept']:,}, broken {counts['broken']}, not applying {counts['exempt']}"
    )
    versions = f"zoo {certificates[0].zoo}, torch {certificates[0].torch}"
    partial = any(one.partial for one in certificates)
    end = "; PARTIAL: stopped before its end" if partial else ""
    return f"{pluralize(len(certificates), 'encoding')}: {outcomes}; {versions}{end}"
