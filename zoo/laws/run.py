"""Check encodings against the laws, and write certificates."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any, Literal

import torch

from zoo import registry
from zoo.attention.encoding import describe_facts
from zoo.config.tree import collect_issues
from zoo.encodings.common.chains import build_shortest_chain, format_chain
from zoo.errors import ARGUMENT, ConfigIssue, DataError, OptionError, RecipeError, Stopped, ZooError
from zoo.laws import LAWS, Case, Law
from zoo.laws.certificate import Certificate, Finding, Rounding, examine, measure_roundings
from zoo.laws.report import describe_axes
from zoo.options import Choice
from zoo.reporting.numbers import pluralize
from zoo.suggestions import join_words, nearest
from zoo.utils import Ticker, check_writable, format_now, stop_on_signal, write_file
from zoo.version import __version__

Axes = Literal[1, 2, 3]


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """The axes and laws of a verification, and the folder of its certificates."""

    axes: Axes | tuple[Axes, ...] | None = None
    """Numbers of axes to verify; null: all that the encoding accepts."""

    laws: tuple[str, ...] | None = None
    """Names of laws to check; null: all laws, and the rounding errors of scores."""

    to: str | None = None
    """Folder for certificates, one NAME.json per encoding."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An encoding, or a chain of them, with a case for each number of axes to verify."""

    name: str
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """The certificates of verified encodings.

    Attributes:
        certificates: One for each encoding that was started.
        requested: Number of encodings to verify.
        stopped: Signal that ended the work early.
    """

    certificates: tuple[Certificate, ...]
    requested: int
    stopped: Signals | None

    def to_dict(self) -> dict[str, Any]:
        """Return the certificates as plain data for JSON."""
        return {"certificates": [certificate.to_dict() for certificate in self.certificates]}

    def raise_if_broken(self) -> None:
        """Report broken laws.

        Raises:
            ZooError: Laws are broken. The message has the measurements and their bounds.
            Stopped: A signal ended the work early.
        """
        statements = {law.name: law.statement for law in LAWS}
        # One entry per broken law: where, how, and the law itself.
        lines, failures, count = [], [], 0
        for certificate in self.certificates:
            for finding in certificate.with_outcome("broken"):
                count += 1
                where = f"{certificate.name}, on {describe_axes(finding.axes)}"
                lines.append(f"  {where}: {finding.law}: {finding.detail}")
                lines.append(f"    the law: {statements[finding.law]}")
            reasons = [rounding.reason for rounding in certificate.roundings if rounding.broken]
            failures += [
                f"  {certificate.name}: rounding: {reason}" for reason in dict.fromkeys(reasons)
            ]

        summary = "1 law is broken" if count == 1 else f"{count} laws are broken"
        if failures:
            summary += ", and scores in less than float64 fail"
        lines += failures
        # After a signal, the message also states the progress.
        if self.stopped:
            done = sum(not certificate.partial for certificate in self.certificates)
            progress = f"{done} of {pluralize(self.requested, 'encoding')} checked"
            head = f"stopped by {self.stopped.name}; {progress}, {summary} so far"
            raise Stopped(self.stopped, "\n".join([head, *lines]))
        if lines:
            raise ZooError("\n".join([summary, *lines]))


def run_laws(
    chains: Sequence[Sequence[Choice]] | None, options: VerifyOptions, *, command: str = ""
) -> VerifyResult:
    """Check encodings against the laws, and write certificates if a folder is given.

    Args:
        chains: Chains of encodings. An encoding that needs another before it may stand alone. None
            for every registered encoding.
        options: The options.
        command: What the certificates record as the command that repeats them.

    Raises:
        RecipeError: Some arguments are wrong; nothing was checked.
    """
    # Collect the issues of all arguments, so that a user sees them at once.
    issues: list[ConfigIssue] = []
    laws: list[Law] = []
    candidates: list[Candidate] = []
    with collect_issues(issues):
        laws = select_laws(options.laws)
    if chains is not None and not chains:
        issues.append(ConfigIssue(ARGUMENT, "", "no encoding", "name at least one, or all"))
    for chain in _complete_chains(chains):
        with collect_issues(issues):
            candidates += _make_candidate(chain, options.axes, among_all=chains is None)
    if not issues and not candidates:
        issues.append(ConfigIssue(ARGUMENT, "axes", "no encoding takes so many", "leave it out"))
    if issues:
        raise RecipeError(*dict.fromkeys(issues))

    paths = _choose_paths(options.to, [candidate.name for candidate in candidates])
    certificates: list[Certificate] = []
    ticker = Ticker()
    with stop_on_signal() as received:
        for number, candidate in enumerate(candidates, start=1):
            title = f"{candidate.name} ({number} of {len(candidates)})"
            work = _Examination(candidate, command)
            try:
                for law in work.run(laws, with_rounding=options.laws is None):
                    ticker(f"{title}: {law}")
            finally:
                # An interrupted encoding has a partial certificate.
                certificates.append(work.certify())
            if paths:
                _write(certificates[-1], paths[candidate.name])
    ticker("")
    return VerifyResult(
        certificates=tuple(certificate for certificate in certificates if certificate.findings),
        requested=len(candidates),
        stopped=next(iter(received), None),
    )


def _write(certificate: Certificate, path: Path) -> None:
    content = json.dumps(certificate.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
    write_file(io.BytesIO(f"{content}\n".encode()), path)


def select_laws(names: tuple[str, ...] | None) -> list[Law]:
    """Return the laws with these names; None: all laws.

    Raises:
        RecipeError: A name is unknown, or the list is empty.
    """
    if names == ():
        raise _refuse("laws", "empty list", "omit it to check all laws")
    law_by_name = {law.name: law for law in LAWS}
    issues = []
    for name in names or ():
        if name not in law_by_name:
            hint = nearest(name, law_by_name)
            issues.append(ConfigIssue(ARGUMENT, "laws", f"there is no law {name!r}", hint))
    if issues:
        raise RecipeError(*issues)
    return [law for law in LAWS if names is None or law.name in names]


def _complete_chains(chains: Sequence[Sequence[Choice]] | None) -> list[Sequence[Choice]]:
    """Return each chain once; an encoding that needs biases follows an encoding with biases."""
    if chains is None:
        classes = [registry.find("encodings", name) for name in registry.names("encodings")]
        return [build_shortest_chain(cls) for cls in classes]
    complete: list[Sequence[Choice]] = []
    for chain in {format_chain(choices): choices for choices in chains}.values():
        if len(chain) == 1:
            cls = registry.find("encodings", chain[0].name)
            complete.append(build_shortest_chain(cls, chain[0].options))
        else:
            complete.append(chain)
    return complete


def _make_candidate(
    choices: Sequence[Choice], axes: Axes | tuple[Axes, ...] | None, among_all: bool
) -> list[Candidate]:
    """Return a candidate; none if all encodings were requested and it accepts none of the axes."""
    name = format_chain(choices)
    classes = [registry.find("encodings", choice.name) for choice in choices]
    if any("coordinates" in choice.options for choice in choices):
        message = "laws give coordinates to the encoding directly, so no convention applies"
        raise _refuse(f"{name}: coordinates", message, "leave it out")

    # A chain accepts the numbers of axes that all of its encodings accept.
    accepted = [number for number in (1, 2, 3) if all(number in cls.axes for cls in classes)]
    wanted = accepted if axes is None else sorted({axes} if isinstance(axes, int) else {*axes})
    refused = [number for number in wanted if number not in accepted]
    if among_all:
        wanted = [number for number in wanted if number in accepted]
    elif refused or not wanted:
        hint = f"it takes {join_words(accepted, 'or')}"
        if not accepted:
            hint = "no number of axes suits all encodings of the list"
        raise _refuse("axes", f"{name} does not take {refused or axes}", hint)

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


def _refuse(key: str, message: str, hint: str = "") -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, key, message, hint))


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
        message = f"{folder} cannot be written, {error.strerror or error}"
        raise _refuse("to", message, "name another folder") from None

    # Overwrite certificates, but nothing else.
    paths = {name: folder / f"{re.sub(r'[^A-Za-z0-9_+(),=.-]', '-', name)}.json" for name in names}
    for path in paths.values():
        try:
            if path.exists():
                Certificate.read(path)
        except DataError as error:
            raise _refuse("to", str(error), "name another folder, or remove it") from None
        except OSError:
            message = f"{path} cannot be read"
            raise _refuse("to", message, "name another folder, or remove it") from None
    return paths
