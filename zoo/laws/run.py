"""`zoo verify ENCODING|all`: any encoding put through the laws, and what was recorder of it as a certificate."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from signal import Signals
from typing import Literal

import torch

from zoo import __version__, registry
from zoo.bench.models import build_shortest_chain, format_chain
from zoo.bench.result import pluralize
from zoo.config.command_line import parse_encodings, parse_options
from zoo.config.signature import EveryEncoding
from zoo.config.tree import COMMAND_LINE, collect_issues
from zoo.attention.facts import describe_facts
from zoo.errors import ConfigIssue, DataError, OptionError, RecipeError, Stopped, ZooError
from zoo.laws import LAWS, Case, Law
from zoo.laws.certificate import Certificate, Finding, Rounding, examine, measure_roundings
from zoo.laws.report import describe_axes
from zoo.registry import Choice
from zoo.run import atomic_io
from zoo.utils.progress import Ticker
from zoo.utils.signals import stopping

ALL = "all"
Axes = Literal[1, 2, 3]


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What `zoo verify` tries, beside the options of the encoding."""

    axes: Axes | tuple[Axes, ...] | None = None  # None: each number that is accepted
    laws: tuple[str, ...] | None = None  # None: all of them, and how scores are rounded
    to: str | None = None  # a folder for NAME.json


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An encoding, or a list of them, on each number of axes that it is tried on."""

    name: str
    cases: tuple[Case, ...]


def select_candidates(words: Sequence[str]) -> tuple[VerifyOptions, list[Law], list[Candidate]]:
    """The options, the laws and the encodings that words name. Raises RecipeError with every fault."""
    told = [word for word in words if "=" in word and word.partition("=")[0].isidentifier()]
    names = [word for word in words if word not in told]
    faults: list[ConfigIssue] = []
    options = VerifyOptions()
    own: dict[str, object] = {}
    with collect_issues(faults):
        options, own = _parse_options(told, names)
    with collect_issues(faults):
        laws = _laws(options.laws)
    found: list[Candidate] = []
    with collect_issues(faults):
        for choices in _lists(names, own):
            with collect_issues(faults):
                found += _examinee(choices, options.axes, names == [ALL])
    if not faults and not found:
        faults.append(
            ConfigIssue(COMMAND_LINE, "axes", "no encoding takes so many", "leave it out")
        )
    if faults:
        raise RecipeError(*dict.fromkeys(faults))
    return options, laws, found


def _parse_options(
    told: Sequence[str], names: Sequence[str]
) -> tuple[VerifyOptions, dict[str, object]]:
    """The options of the verb, and those given to an encoding that stands alone."""
    by_itself = len(names) == 1 and names[0] in registry.names("encodings")
    classes = (registry.find("encodings", names[0]), EveryEncoding) if by_itself else ()
    options, *own = parse_options(told, (VerifyOptions, *classes))
    given = {word.partition("=")[0] for word in told}
    return VerifyOptions(**options), {
        key: value for one in own for key, value in one.items() if key in given
    }


def _laws(names: tuple[str, ...] | None) -> list[Law]:
    known = {law.name: law for law in LAWS}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        told = [(name, registry.nearest(name, known)) for name in unknown]
        raise RecipeError(
            *(
                ConfigIssue(COMMAND_LINE, "laws", f"there is no law {name!r}", near)
                for name, near in told
            )
        )
    if names == ():
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, "laws", "a list of none", "leave it out for all of them")
        )
    return [law for law in LAWS if names is None or law.name in names]


def _lists(names: Sequence[str], own: dict[str, object]) -> list[list[Choice]]:
    """The encodings of each name, with whatever an encoding cannot be without before it."""
    if not names:
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, "", "no encoding", "name one, or all; see zoo list encodings")
        )
    if list(names) == [ALL]:
        return [
            build_shortest_chain(registry.find("encodings", name))
            for name in registry.names("encodings")
        ]
    found = {format_chain(choices): [*choices] for choices in parse_encodings(names)}
    return [_complete(choices, own) if len(choices) == 1 else choices for choices in found.values()]


def _complete(choices: Sequence[Choice], own: dict[str, object]) -> list[Choice]:
    (choice,) = choices
    return build_shortest_chain(registry.find("encodings", choice.name), {**choice.options, **own})


def _examinee(
    choices: Sequence[Choice], asked: Axes | tuple[Axes, ...] | None, among_all: bool
) -> list[Candidate]:
    """None where it takes none of the axes that all are asked for."""
    classes, name = [registry.find("encodings", one.name) for one in choices], format_chain(choices)
    if any("coordinates" in one.options for one in choices):
        problem = "laws place tokens at coordinates as the encoding takes them, to which no convention applies"
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, f"{name}: coordinates", problem, "leave it out")
        )
    taken = [axes for axes in (1, 2, 3) if all(axes in cls.axes for cls in classes)]
    wanted = taken if asked is None else sorted({asked} if isinstance(asked, int) else {*asked})
    refused = [axes for axes in wanted if axes not in taken]
    if among_all:
        wanted = [axes for axes in wanted if axes in taken]
    elif refused or not wanted:
        remedy = (
            f"it takes {' or '.join(map(str, taken))}"
            if taken
            else "no number of axes suits all that are listed"
        )
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, "axes", f"{name} does not take {refused or asked}", remedy)
        )
    try:
        cases = tuple(Case.from_choices(name, choices, axes) for axes in wanted)
        for case in cases:
            case.build()
    except OptionError as invalid:
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, f"{name}: {invalid.key}", str(invalid))
        ) from None
    except Exception as error:  # of the encoding, whatever it is
        problem = f"it cannot be made, {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise RecipeError(ConfigIssue(COMMAND_LINE, name, problem)) from None
    return [Candidate(name=name, cases=cases)] if cases else []


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Certificates of so many encodings out of those asked for, and the signal that ended the work early."""

    certificates: tuple[Certificate, ...]
    requested: int
    stopped: Signals | None


def verify(words: Sequence[str], plugins: Sequence[str]) -> Verification:
    """Put encodings through the laws. What can be wrong with the arguments is told before."""
    options, laws, asked = select_candidates(words)
    paths = _paths(options.to, [one.name for one in asked])
    command = shlex.join(
        ["zoo", "verify", *words, *(word for plugin in plugins for word in ("--plugin", plugin))]
    )
    found, tell = list[Certificate](), Ticker()
    with stopping() as received:
        for number, one in enumerate(asked, start=1):
            work = _Work(one, laws, options.laws is None, command)
            try:
                work.run(
                    lambda law, name=one.name, at=number: tell(  # type: ignore[misc]
                        f"{name} ({at} of {len(asked)}): {law}"
                    )
                )
            finally:
                found.append(work.certificate())
            if paths:
                atomic_io.write(
                    io.BytesIO(f"{write_json(found[-1].to_dict())}\n".encode()), paths[one.name]
                )
    tell("")
    done = tuple(one for one in found if one.findings)
    return Verification(certificates=done, requested=len(asked), stopped=next(iter(received), None))


def write_json(plain: object) -> str:
    """As JSON."""
    return json.dumps(plain, indent=1, allow_nan=False, ensure_ascii=False)


def raise_if_broken(done: Verification) -> None:
    """Raises ZooError with each broken law, what was recorder and what would be right, or Stopped where work was cut short."""
    says = {law.name: law.statement for law in LAWS}
    broken = [(one.name, finding) for one in done.certificates for finding in one.with_outcome("broken")]
    count = "1 law is broken" if len(broken) == 1 else f"{len(broken)} laws are broken"
    lines = [
        line
        for name, one in broken
        for line in (
            f"  {name}, on {describe_axes(one.axes)}: {one.law}: {one.detail}",
            f"    the law: {says[one.law]}",
        )
    ]
    failing = {
        f"  {one.name}: rounding: {each.reason}": None
        for one in done.certificates
        for each in one.roundings
        if each.broken
    }
    if failing:
        count, lines = f"{count}, and scores in less than float64 fail", [*lines, *failing]
    if done.stopped:
        whole = sum(not one.partial for one in done.certificates)
        told = f"stopped by {done.stopped.name}; {whole} of {counted(done.requested, 'encoding')} checked, {count} so far"
        raise Stopped(done.stopped, "\n".join([told, *lines]))
    if lines:
        raise ZooError("\n".join([count, *lines]))


class _Work:
    """An encoding under the laws; what was found of it is known at any time."""

    def __init__(
        self, examinee: Candidate, laws: Sequence[Law], rounded: bool, command: str
    ) -> None:
        self.examinee, self.laws, self.rounded, self.command = examinee, laws, rounded, command
        self.findings: list[Finding] = []
        self.roundings: list[Rounding] = []
        self.partial = True

    def run(self, tell: Callable[[str], None]) -> None:
        cases = self.examinee.cases
        for law in self.laws:
            tell(law.name)
            self.findings.append(examine(law, cases))
        if self.rounded:
            tell("rounding")
            self.roundings += measure_roundings(cases)
        self.partial = False

    def certificate(self) -> Certificate:
        cases = self.examinee.cases
        links = cases[0].facts.named_children()
        return Certificate(
            name=self.examinee.name,
            facts={name: describe_facts(link) for name, link in links},  # type: ignore[arg-type]
            axes=tuple(case.axes for case in cases),
            findings=tuple(self.findings),
            roundings=tuple(self.roundings),
            zoo=__version__,
            torch=torch.__version__,
            created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            command=self.command,
            partial=self.partial,
        )


def _paths(to: str | None, names: Sequence[str]) -> dict[str, Path]:
    """The file of each certificate. Raises RecipeError where one cannot be written, or another file has its name."""
    if to is None:
        return {}
    folder = Path(to)
    try:
        folder.mkdir(exist_ok=True)
        trial = folder / ".check"
        trial.touch()
        trial.unlink()
    except OSError as error:
        problem = f"{folder} cannot be written, {error.strerror or error}"
        raise RecipeError(ConfigIssue(COMMAND_LINE, "to", problem, "name another folder")) from None
    found = {name: folder / f"{re.sub(r'[^A-Za-z0-9_+(),=.-]', '-', name)}.json" for name in names}
    for path in found.values():
        try:
            if path.exists():
                Certificate.read(path)
        except (DataError, OSError):
            problem = f"{path} is there already and is no certificate"
            raise RecipeError(
                ConfigIssue(COMMAND_LINE, "to", problem, "name another folder, or remove it")
            ) from None
    return found
