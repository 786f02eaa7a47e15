"""Arguments of the command line that change a recipe: `a.b=1` sets a key, `~a.b` removes one."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass

from zoo.config.merge import put, remove
from zoo.config.source import parse
from zoo.config.tree import COMMAND_LINE, DEPTH, Node, gathered, is_key
from zoo.errors import ConfigIssue, RecipeError


@dataclass(frozen=True)
class Override:
    """A key and its new value, None to remove it."""

    parts: tuple[str, ...]
    value: Node | None

    def __call__(self, tree: Node) -> Node:
        return remove(tree, self.parts) if self.value is None else put(tree, self.parts, self.value)


def parse_all(arguments: Iterable[str], faults: list[ConfigIssue]) -> list[Override]:
    """The overrides that can be read; the others are faults."""
    assert not isinstance(arguments, str), "overrides are a sequence of strings"
    found = []
    for argument in arguments:
        with gathered(faults):
            found.append(_parse(argument))
    return found


def _parse(argument: str) -> Override:
    key, equals, text = argument.lstrip("+~").partition("=")
    parts = tuple(key.split("."))
    removes = argument.startswith("~")
    if len(parts) > DEPTH or not all(map(is_key, parts)):
        raise _bad(argument, "", "not a key", "write section.key=value")
    if argument.startswith("+"):
        raise _bad(
            argument, key, "keys take no +", f"write {reprlib.repr(argument.lstrip('+'))[1:-1]}"
        )
    if removes and equals:
        raise _bad(argument, key, "a removal takes no value", f"write ~{key} or {key}=value")
    if not removes and not equals:
        raise _bad(argument, "", "not an override", "write key=value, or ~key to remove a key")
    if parts[0] == "extends":
        raise _bad(argument, "", "extends is read from files only", "override the keys themselves")
    return Override(parts, None if removes else _value(argument, key, text))


def _value(argument: str, key: str, text: str) -> Node:
    faults: list[ConfigIssue] = []
    if not text.strip():
        raise _bad(argument, key, "no value", "write null for nothing, '' for an empty text")
    with gathered(faults):
        node = parse(text, lambda line: COMMAND_LINE, faults)
    if faults:
        raise RecipeError(
            *(
                fault
                for bad in faults
                for fault in _bad(argument, key, bad.problem, bad.remedy).faults
            )
        )
    return node


def _bad(argument: str, key: str, problem: str, remedy: str) -> RecipeError:
    return RecipeError(
        ConfigIssue(COMMAND_LINE, key, f"{reprlib.repr(argument)}: {problem}", remedy)
    )
