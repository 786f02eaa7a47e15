"""`zoo check ENCODING|all`: any encoding put through the laws, and what was seen of it as a certificate."""

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

import torch

from zoo import __version__
from zoo.bench.machine import counted
from zoo.errors import DataError, Fault, RecipeError, Stopped, ZooError
from zoo.laws import LAWS, Law
from zoo.laws.certificate import Certificate, Finding, examined
from zoo.laws.rounding import Rounding, roundings
from zoo.recipe.tree import COMMAND_LINE
from zoo.run import storage
from zoo.verbs.certified import axes_told
from zoo.verbs.examinees import Examinee, examinees
from zoo.verbs.facts import declared
from zoo.verbs.stops import stopping
from zoo.verbs.ticker import Ticker


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """Certificates of so many encodings out of those asked for, and the signal that ended the work early."""

    certificates: tuple[Certificate, ...]
    asked: int
    stopped: Signals | None


def conform(words: Sequence[str], plugins: Sequence[str]) -> Conformance:
    """Put encodings through the laws. What can be wrong with the arguments is told before."""
    options, laws, asked = examinees(words)
    paths = _paths(options.to, [one.name for one in asked])
    command = shlex.join(["zoo", "check", *words, *(word for plugin in plugins for word in ("--plugin", plugin))])
    found, tell = list[Certificate](), Ticker()
    with stopping() as received:
        for number, one in enumerate(asked, start=1):
            work = _Work(one, laws, options.laws is None, command)
            try:
                work.run(lambda law, name=one.name, at=number: tell(f"{name} ({at} of {len(asked)}): {law}"))  # type: ignore[misc]
            finally:
                found.append(work.certificate())
            if paths:
                storage.write(io.BytesIO(f"{written(found[-1].plain())}\n".encode()), paths[one.name])
    tell("")
    done = tuple(one for one in found if one.findings)
    return Conformance(certificates=done, asked=len(asked), stopped=next(iter(received), None))


def written(plain: object) -> str:
    """As JSON."""
    return json.dumps(plain, indent=1, allow_nan=False, ensure_ascii=False)


def judge(done: Conformance) -> None:
    """Raises ZooError with each broken law, what was seen and what would be right, or Stopped where work was cut short."""
    says = {law.name: law.says for law in LAWS}
    broken = [(one.name, finding) for one in done.certificates for finding in one.of("broken")]
    count = "1 law is broken" if len(broken) == 1 else f"{len(broken)} laws are broken"
    lines = [
        line
        for name, one in broken
        for line in (f"  {name}, on {axes_told(one.axes)}: {one.law}: {one.told}", f"    the law: {says[one.law]}")
    ]
    failing = {
        f"  {one.name}: rounding: {each.why}": None
        for one in done.certificates
        for each in one.roundings
        if each.broken
    }
    if failing:
        count, lines = f"{count}, and scores in less than float64 fail", [*lines, *failing]
    if done.stopped:
        whole = sum(not one.partial for one in done.certificates)
        told = f"stopped by {done.stopped.name}; {whole} of {counted(done.asked, 'encoding')} checked, {count} so far"
        raise Stopped(done.stopped, "\n".join([told, *lines]))
    if lines:
        raise ZooError("\n".join([count, *lines]))


class _Work:
    """An encoding under the laws; what was found of it is known at any time."""

    def __init__(self, examinee: Examinee, laws: Sequence[Law], rounded: bool, command: str) -> None:
        self.examinee, self.laws, self.rounded, self.command = examinee, laws, rounded, command
        self.findings: list[Finding] = []
        self.roundings: list[Rounding] = []
        self.partial = True

    def run(self, tell: Callable[[str], None]) -> None:
        members = self.examinee.members
        for law in self.laws:
            tell(law.name)
            self.findings.append(examined(law, members))
        if self.rounded:
            tell("rounding")
            self.roundings += roundings(members)
        self.partial = False

    def certificate(self) -> Certificate:
        members = self.examinee.members
        links = members[0].facts.named_children()
        return Certificate(
            name=self.examinee.name,
            facts={name: declared(link) for name, link in links},  # type: ignore[arg-type]
            axes=tuple(member.axes for member in members),
            findings=tuple(self.findings),
            roundings=tuple(self.roundings),
            zoo=__version__,
            torch=torch.__version__,
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
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
        raise RecipeError(Fault(COMMAND_LINE, "to", problem, "name another folder")) from None
    found = {name: folder / f"{re.sub(r'[^A-Za-z0-9_+(),=.-]', '-', name)}.json" for name in names}
    for path in found.values():
        try:
            if path.exists():
                Certificate.read(path)
        except (DataError, OSError):
            problem = f"{path} is there already and is no certificate"
            raise RecipeError(Fault(COMMAND_LINE, "to", problem, "name another folder, or remove it")) from None
    return found
