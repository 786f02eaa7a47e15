"""A recipe before it is typed: a tree of plain values, each of which knows where it was written."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from zoo.errors import ConfigIssue, RecipeError
from zoo.registry import Choice

COMMAND_LINE = "command line"
DEPTH = 32
NODES = 10_000

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Node:
    """A value and its place, "path:line" or "command line"."""

    value: dict[str, Node] | list[Node] | Scalar
    place: str


def join(key: str, part: str | int) -> str:
    """The full key of a part: `model` and `dim` give `model.dim`."""
    return f"{key}.{part}" if key else str(part)


def upward(key: str) -> Iterator[str]:
    """A key and those above it: `model.dim`, `model` and the empty key of the whole recipe."""
    while key:
        yield key
        key = key.rpartition(".")[0]
    yield ""


def is_key(word: object) -> bool:
    """Whether a word can be a key: printable, no dot (a dot steps into a key), at most 100 characters."""
    return isinstance(word, str) and 0 < len(word) <= 100 and "." not in word and word.isprintable()


def children(node: Node) -> dict[str, Node]:
    """What a mapping holds; nothing where the node is no mapping."""
    return node.value if isinstance(node.value, dict) else {}


def is_text(text: str) -> bool:
    """Whether a text can be written down: Python's strings may hold halves of characters."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def plain(node: Node) -> Any:
    """The tree as dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def unfrozen(typed: Any) -> Any:
    """A typed value as dicts, lists and scalars."""
    if isinstance(typed, Choice):
        return {"name": typed.name, **unfrozen(typed.options)}
    if dataclasses.is_dataclass(typed):
        return {
            field.name: unfrozen(getattr(typed, field.name))
            for field in dataclasses.fields(typed)
            if field.init
        }
    if isinstance(typed, Mapping):
        return {word: unfrozen(each) for word, each in typed.items()}
    return [unfrozen(each) for each in typed] if isinstance(typed, list | tuple) else typed


def leaves(node: Node, key: str = "") -> Iterator[tuple[str, Node]]:
    """Every scalar of the tree with its full key."""
    if isinstance(node.value, dict | list):
        for part, child in (
            node.value.items() if isinstance(node.value, dict) else enumerate(node.value)
        ):
            yield from leaves(child, join(key, part))
    else:
        yield key, node


def plant(value: object, place: str) -> Node:
    """The tree of plain data that stands at one place. Raises RecipeError where the data is not plain or too large."""
    count = 0

    def grow(value: object, key: str, depth: int) -> Node:
        nonlocal count
        count += 1
        if depth > DEPTH or count > NODES:
            raise RecipeError(
                ConfigIssue(place, key, f"deeper than {DEPTH} levels or more than {NODES:,} values")
            )
        if isinstance(value, dict) and all(map(is_key, value)):
            return Node(
                {word: grow(child, join(key, word), depth + 1) for word, child in value.items()},
                place,
            )
        if isinstance(value, list | tuple):
            return Node(
                [grow(child, join(key, i), depth + 1) for i, child in enumerate(value)], place
            )
        if isinstance(value, str) and not is_text(value):
            raise RecipeError(
                ConfigIssue(place, key, f"not text that can be written down: {reprlib.repr(value)}")
            )
        if value is None or type(value) in (str, int, float, bool):
            return Node(value, place)  # type: ignore[arg-type]
        raise RecipeError(ConfigIssue(place, key, f"not plain data but {type(value).__name__}"))

    return grow(value, "", 0)


@contextmanager
def gathered(faults: list[ConfigIssue]) -> Iterator[None]:
    """Collect the faults that the block raises, and go on after it."""
    try:
        yield
    except RecipeError as error:
        faults.extend(error.faults)


@contextmanager
def told_together(faults: list[ConfigIssue]) -> Iterator[None]:
    """What ends the block is told together with what was found before."""
    try:
        yield
    except RecipeError as error:
        raise RecipeError(*faults, *error.faults) from None
