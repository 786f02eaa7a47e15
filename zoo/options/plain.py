"""Plain data: mappings, lists and scalars, whose parts have dotted keys such as `model.dim`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.options.marks import Choice

DEPTH = 32
SCALARS = frozenset({str, int, float, bool, type(None)})
NODES = 10_000
REFERENCE = re.compile(r"\$\{([A-Za-z_][\w-]*(?:\.[\w-]+)*)\}")
RESOLVER = re.compile(r"\$\{[^{}]*:")
UNREADABLE = "${_}"  # takes the place of an interpolation that is reported already


def locate(locations: Mapping[str, str], key: str) -> str:
    """Return the location of a key, or of the nearest key above it; empty if there is none."""
    # called for every key of a recipe, so without list_ancestors
    while key and key not in locations:
        key = key.rpartition(".")[0]
    return locations.get(key, "")


def join(key: str, part: str | int) -> str:
    """Return the full key of a part: `model` and `dim` give `model.dim`."""
    return f"{key}.{part}" if key else str(part)


def list_ancestors(key: str) -> Iterator[str]:
    """Yield a key and those above it: `model.dim`, `model` and the empty key of all data."""
    while key:
        yield key
        key = key.rpartition(".")[0]
    yield ""


def list_children(data: object) -> Iterable[tuple[str | int, Any]]:
    """Return the parts of a mapping or a list with their values; nothing for a scalar."""
    if isinstance(data, Mapping):
        return data.items()
    return enumerate(data) if isinstance(data, list | tuple) else ()


def walk(data: object) -> list[tuple[str, Any]]:
    """Return every full key with its value, those of containers before those in them."""
    # in one loop without calls: a recipe is walked several times for each key that is set
    entries: list[tuple[str, Any]] = []
    left: list[tuple[str, Any]] = [("", data)]
    while left:
        key, value = left.pop()
        entries.append((key, value))
        if isinstance(value, Mapping):
            children = [*value.items()]
        elif isinstance(value, list | tuple):
            children = [*enumerate(value)]
        else:
            continue
        above = f"{key}." if key else ""
        for part, child in reversed(children):
            left.append((f"{above}{part}", child))
    return entries


def is_key(word: object) -> bool:
    """Return whether a word can be a key: printable, no dot, at most 100 characters."""
    return isinstance(word, str) and 0 < len(word) <= 100 and "." not in word and word.isprintable()


def is_interpolation(value: object) -> bool:
    """Return whether a value waits for another, as `${model.dim}` does."""
    return isinstance(value, str) and "${" in value


def to_plain(typed: Any) -> Any:
    """Turn a typed value into dicts, lists and scalars."""
    if isinstance(typed, Choice):
        typed = {"name": typed.name, **typed.options}
    elif dataclasses.is_dataclass(typed):
        names = [field.name for field in dataclasses.fields(typed) if field.init]
        typed = {name: getattr(typed, name) for name in names}
    # scalars, which most values are, take no further call
    if isinstance(typed, Mapping):
        return {
            word: child if type(child) in SCALARS else to_plain(child)
            for word, child in typed.items()
        }
    if isinstance(typed, list | tuple):
        return [item if type(item) in SCALARS else to_plain(item) for item in typed]
    return typed


def format_value(value: object) -> str:
    """Write a value as YAML would, shortened."""
    spellings = {None: "null", True: "true", False: "false"}
    return spellings[value] if value is None or isinstance(value, bool) else reprlib.repr(value)


def format_label(value: Any) -> str:
    """Write a value as people do: rope, alibi+dape, rope(base=100), 4."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "+".join(map(format_label, value))
    if not isinstance(value, dict):
        return json.dumps(value)
    name = str(value.get("name", ""))
    options = [f"{key}={format_label(option)}" for key, option in value.items() if key != "name"]
    return format_call(name, options, ",") if options or name else "()"


def format_call(name: str, arguments: Iterable[str], separator: str = ", ") -> str:
    """Write a name with its arguments as a call: rope(base=100); without arguments, the name."""
    joined = separator.join(arguments)
    return f"{name}({joined})" if joined else name


def check_interpolation(value: object) -> tuple[str, str] | None:
    """Return problem and remedy of an interpolation that is no plain `${section.key}`."""
    if not is_interpolation(value):
        return None
    string = str(value)
    if RESOLVER.search(string):
        return f"resolvers are refused: {format_value(string)}", "write the value itself"
    if "${" in REFERENCE.sub("", string) or "\\${" in string:
        return f"malformed interpolation {format_value(string)}", "write ${section.key}"
    return None


def is_text(text: str) -> bool:
    """Return whether a string is valid text: Python's strings may hold halves of characters."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


class PlainReader:
    """Convert a value that a Python program passed to plain data.

    Args:
        issues: Takes what cannot be converted, by key.
    """

    def __init__(self, issues: list[ConfigIssue]) -> None:
        self.issues = issues
        self.count = 0

    def read(self, value: Any, key: str, depth: int = 0) -> Any:
        """Return a value as dicts, lists, strings, numbers, booleans and None.

        Raises:
            RecipeError: It is too large to go on.
        """
        self.count += 1
        if depth > DEPTH or self.count > NODES:
            message = f"deeper than {DEPTH} levels or more than {NODES:,} values"
            raise RecipeError(ConfigIssue(ARGUMENT, key, message))
        value = _unwrap(value)
        if isinstance(value, Mapping):
            return self.read_mapping(value, key, depth)
        if isinstance(value, list | tuple):
            return [self.read(item, join(key, i), depth + 1) for i, item in enumerate(value)]
        if isinstance(value, str):
            return self.read_text(value, key)
        # before numbers, since a bool is an integer to Python
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real):
            return float(value)
        message = f"not plain data but {type(value).__name__}"
        self.refuse(key, message, "write a number, a string, a list or a mapping")
        return None

    def read_mapping(self, value: Mapping[Any, Any], key: str, depth: int) -> dict[str, Any]:
        plain = {}
        for word, child in value.items():
            if is_key(word):
                plain[word] = self.read(child, join(key, word), depth + 1)
            else:
                nested = isinstance(word, str) and "." in word
                hint = "nest mappings instead of writing dots" if nested else ""
                self.refuse(key, f"{reprlib.repr(word)} cannot be a key", hint)
        return plain

    def read_text(self, value: str, key: str) -> str:
        if not is_text(value):
            self.refuse(key, f"not text that can be written down: {reprlib.repr(value)}")
        elif issue := check_interpolation(value):
            self.refuse(key, *issue)
        return str(value)

    def refuse(self, key: str, problem: str, remedy: str = "") -> None:
        self.issues.append(ConfigIssue(ARGUMENT, key, problem, remedy))


def _unwrap(value: Any) -> Any:
    """Return the value of a path, of a scalar of numpy or torch, or of typed options."""
    if isinstance(value, Choice):
        return {"name": value.name, **value.options}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # numpy and torch are not imported for this: whoever passes their scalars has imported them
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value
