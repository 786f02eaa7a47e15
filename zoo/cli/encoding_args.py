"""The encodings that a comparison names on the command line, and those of them that its sizes allow."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from zoo.bench.models import every, ours
from zoo.bench.protocol import Contender, Setting, refusal
from zoo.config.tree import COMMAND_LINE, collect_issues
from zoo.config.validate import Validator
from zoo.config.yaml import parse
from zoo.errors import ConfigIssue, RecipeError
from zoo.registry import Choice

log = logging.getLogger("zoo")


def asked(words: Sequence[str], key: str | None = None) -> list[Contender]:
    """A contender for each word, as `listed` reads it; all of them for none."""
    found = [ours(choices) for choices in listed(words, key)]
    return list({one.name: one for one in found}.values()) if words else every()


def listed(words: Sequence[str], key: str | None = None) -> list[tuple[Choice, ...]]:
    """The encodings that each word names: `rope`, `kerple+dape`, `[alibi,dape]`, `{name: liere, block: 4}`.

    Raises RecipeError with every name and option that is not known, blamed on the `key` that they are told by.
    """
    faults: list[ConfigIssue] = []
    found = [_choices(word, key or word, faults) for word in words]
    if faults:
        raise RecipeError(*faults)
    return found


def lined_up(
    words: Sequence[str], against: str | None, setting: Setting, lengths: Sequence[int]
) -> tuple[list[Contender], dict[str, str]]:
    """The reference, then those of `words` that the sizes allow, and why others are left out, which is said of named ones.

    Raises RecipeError if there is none.
    """
    settings = [setting.at(length) for length in lengths]
    if why := refusal(ours([Choice("none")]), settings):
        raise RecipeError(ConfigIssue(COMMAND_LINE, "--lengths", why))
    (reference,) = asked([against or setting.shape.reference], "against")
    if why := refusal(reference, settings):
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, "against", why, f"name an encoding for {setting.shape.kind}s")
        )
    others = [one for one in asked(words) if one.name != reference.name]
    left_out = {one.name: why for one in others if (why := refusal(one, settings))}
    able = [one for one in others if one.name not in left_out]
    if left_out and not able:
        raise RecipeError(*(ConfigIssue(COMMAND_LINE, name, why) for name, why in left_out.items()))
    for name, why in left_out.items() if words else ():
        log.info("%s is left out: %s", name, why)
    return [reference, *able], left_out


def _choices(word: str, key: str, faults: list[ConfigIssue]) -> tuple[Choice, ...]:
    """What a word names, with the options that it gives alone; none where it has faults."""
    found: list[ConfigIssue] = []
    validator, entries = Validator({"": COMMAND_LINE}), _entries(word, found)
    choices = [validator.validate_choice("encodings", entry, "") for entry in entries]
    found += validator.issues
    names = [] if found else [one.name for one in choices]
    if len(set(names)) < len(names):
        found.append(
            ConfigIssue(COMMAND_LINE, "", "an encoding stands twice in a list", "list it once")
        )
    if not found and not names:
        found.append(ConfigIssue(COMMAND_LINE, "", "no encoding", "see zoo list encodings"))
    faults += [
        ConfigIssue(COMMAND_LINE, key, fault.problem, fault.remedy)
        for fault in dict.fromkeys(found)
    ]
    return () if found else tuple(map(_given, entries, choices))


def _entries(word: str, faults: list[ConfigIssue]) -> list[Any]:
    """Return the entries of a list, or a list of one."""
    if not word.lstrip().startswith(("[", "{")):
        return [name.strip() for name in word.split("+")]
    with collect_issues(faults):
        data = parse(word, lambda line: COMMAND_LINE, faults).data
        return data if isinstance(data, list) else [data]
    return []


def _given(entry: Any, choice: Choice) -> Choice:
    """Return a choice with the options that its entry gives, not all that there are."""
    keys = [key for key in entry if key != "name"] if isinstance(entry, dict) else []
    return Choice(choice.name, MappingProxyType({key: choice.options[key] for key in keys}))
