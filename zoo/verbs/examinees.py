"""What `zoo check` is asked to put through the laws: encodings, their numbers of axes, and which laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from zoo import registry
from zoo.bench.ours import alone, title
from zoo.errors import Fault, Invalid, RecipeError
from zoo.laws import LAWS, Law, Member
from zoo.recipe.signature import EveryEncoding
from zoo.recipe.tree import COMMAND_LINE, gathered
from zoo.registry import Choice
from zoo.verbs.contenders import listed
from zoo.verbs.options import typed

ALL = "all"
Axes = Literal[1, 2, 3]


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What `zoo check` tries, beside the options of the encoding."""

    axes: Axes | tuple[Axes, ...] | None = None  # None: each number that is accepted
    laws: tuple[str, ...] | None = None  # None: all of them, and how scores are rounded
    to: str | None = None  # a folder for NAME.json


@dataclass(frozen=True, kw_only=True)
class Examinee:
    """An encoding, or a list of them, on each number of axes that it is tried on."""

    name: str
    members: tuple[Member, ...]


def examinees(words: Sequence[str]) -> tuple[CheckOptions, list[Law], list[Examinee]]:
    """The options, the laws and the encodings that words name. Raises RecipeError with every fault."""
    told = [word for word in words if "=" in word and word.partition("=")[0].isidentifier()]
    names = [word for word in words if word not in told]
    faults: list[Fault] = []
    options = CheckOptions()
    own: dict[str, object] = {}
    with gathered(faults):
        options, own = _typed(told, names)
    with gathered(faults):
        laws = _laws(options.laws)
    found: list[Examinee] = []
    with gathered(faults):
        for choices in _lists(names, own):
            with gathered(faults):
                found += _examinee(choices, options.axes, names == [ALL])
    if not faults and not found:
        faults.append(Fault(COMMAND_LINE, "axes", "no encoding takes so many", "leave it out"))
    if faults:
        raise RecipeError(*dict.fromkeys(faults))
    return options, laws, found


def _typed(told: Sequence[str], names: Sequence[str]) -> tuple[CheckOptions, dict[str, object]]:
    """The options of the verb, and those given to an encoding that stands alone."""
    by_itself = len(names) == 1 and names[0] in registry.names("encodings")
    classes = (registry.find("encodings", names[0]), EveryEncoding) if by_itself else ()
    options, *own = typed(told, (CheckOptions, *classes))
    given = {word.partition("=")[0] for word in told}
    return CheckOptions(**options), {key: value for one in own for key, value in one.items() if key in given}


def _laws(names: tuple[str, ...] | None) -> list[Law]:
    known = {law.name: law for law in LAWS}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        told = [(name, registry.nearest(name, known)) for name in unknown]
        raise RecipeError(*(Fault(COMMAND_LINE, "laws", f"there is no law {name!r}", near) for name, near in told))
    if names == ():
        raise RecipeError(Fault(COMMAND_LINE, "laws", "a list of none", "leave it out for all of them"))
    return [law for law in LAWS if names is None or law.name in names]


def _lists(names: Sequence[str], own: dict[str, object]) -> list[list[Choice]]:
    """The encodings of each name, with whatever an encoding cannot be without before it."""
    if not names:
        raise RecipeError(Fault(COMMAND_LINE, "", "no encoding", "name one, or all; see zoo list encodings"))
    if list(names) == [ALL]:
        return [alone(registry.find("encodings", name)) for name in registry.names("encodings")]
    found = {title(choices): [*choices] for choices in listed(names)}
    return [_complete(choices, own) if len(choices) == 1 else choices for choices in found.values()]


def _complete(choices: Sequence[Choice], own: dict[str, object]) -> list[Choice]:
    (choice,) = choices
    return alone(registry.find("encodings", choice.name), {**choice.options, **own})


def _examinee(choices: Sequence[Choice], asked: Axes | tuple[Axes, ...] | None, among_all: bool) -> list[Examinee]:
    """None where it takes none of the axes that all are asked for."""
    classes, name = [registry.find("encodings", one.name) for one in choices], title(choices)
    if any("coordinates" in one.options for one in choices):
        problem = "laws place tokens at coordinates as the encoding takes them, to which no convention applies"
        raise RecipeError(Fault(COMMAND_LINE, f"{name}: coordinates", problem, "leave it out"))
    taken = [axes for axes in (1, 2, 3) if all(axes in cls.axes for cls in classes)]
    wanted = taken if asked is None else sorted({asked} if isinstance(asked, int) else {*asked})
    refused = [axes for axes in wanted if axes not in taken]
    if among_all:
        wanted = [axes for axes in wanted if axes in taken]
    elif refused or not wanted:
        remedy = f"it takes {' or '.join(map(str, taken))}" if taken else "no number of axes suits all that are listed"
        raise RecipeError(Fault(COMMAND_LINE, "axes", f"{name} does not take {refused or asked}", remedy))
    try:
        members = tuple(Member.of(name, choices, axes) for axes in wanted)
        for member in members:
            member.make()
    except Invalid as invalid:
        raise RecipeError(Fault(COMMAND_LINE, f"{name}: {invalid.key}", str(invalid))) from None
    except Exception as error:  # of the encoding, whatever it is
        problem = f"it cannot be made, {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise RecipeError(Fault(COMMAND_LINE, name, problem)) from None
    return [Examinee(name=name, members=members)] if members else []
