"""Changes of a recipe as data: keys with their new values, and keys to remove."""

from __future__ import annotations

import dataclasses
import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from zoo.config.tree import DEPTH, NODES, check_interpolation, collect_issues, is_key, is_text, join
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.options import Choice


@dataclass(frozen=True)
class Change:
    """Set a key to a value, merged with what the key holds.

    Attributes:
        key: The full key, such as `model.encoding`.
        value: Plain data: scalars, and lists and mappings of them.
    """

    key: str
    value: Any


@dataclass(frozen=True)
class Removal:
    """Remove a key and everything below it."""

    key: str


Edit = Change | Removal
Overrides = Mapping[str, Any] | Sequence[Edit]
"""Changes of a recipe: {key: value}, or a list that may also remove keys."""


def join_overrides(*several: Overrides) -> list[Edit]:
    """Return the edits of several overrides in order, later ones over earlier ones.

    Raises:
        RecipeError: Something is no override; all issues are reported together.
    """
    return [edit for overrides in several for edit in list_edits(overrides)]


def list_edits(overrides: Overrides) -> list[Edit]:
    """Return overrides as edits whose values are plain data.

    Scalars of numpy and torch become numbers, paths become strings, and dataclasses mappings.

    Raises:
        RecipeError: Some keys or values cannot be used; all issues are reported together.
    """
    entries: Sequence[Any]
    if isinstance(overrides, Mapping):
        entries = [Change(key, value) for key, value in overrides.items()]
    else:
        # a string is a sequence too, of characters
        entries = [overrides] if isinstance(overrides, str) else [*overrides]

    edits: list[Edit] = []
    issues: list[ConfigIssue] = []
    for entry in entries:
        if not isinstance(entry, Change | Removal):
            issues.append(_refuse_entry(entry))
        elif problem := check_key(entry.key):
            issues.append(ConfigIssue(ARGUMENT, "", f"{reprlib.repr(entry.key)} {problem}"))
        elif isinstance(entry, Removal):
            edits.append(entry)
        else:
            with collect_issues(issues):
                value = _PlainReader(issues).read(entry.value, entry.key)
                edits.append(Change(entry.key, value))
    if issues:
        raise RecipeError(*issues)
    return edits


def check_key(key: object) -> str:
    """Return why a key cannot be overridden; empty if it can be."""
    parts = key.split(".") if isinstance(key, str) else []
    if not parts or len(parts) > DEPTH or "[" in str(key) or not all(map(is_key, parts)):
        return "is not a key such as optim.lr"
    if parts[0] == "extends":
        return "cannot be overridden: only files extend others"
    return ""


def _refuse_entry(entry: object) -> ConfigIssue:
    """Describe something that is no edit; suggest the edit that a string may mean."""
    problem = f"expected a mapping {{key: value}}, got {reprlib.repr(entry)}"
    remedy = ""
    if isinstance(entry, str) and entry.startswith("~"):
        remedy = f"write [Removal({entry[1:]!r})]"
    elif isinstance(entry, str) and "=" in entry:
        key, _, text = entry.partition("=")
        remedy = f'write {{"{key}": {text}}}'
    return ConfigIssue(ARGUMENT, "overrides", problem, remedy)


class _PlainReader:
    """Convert one value to plain data; collect what cannot be converted, by key."""

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
            problem = f"deeper than {DEPTH} levels or more than {NODES:,} values"
            raise RecipeError(ConfigIssue(ARGUMENT, key, problem))
        value = _unwrap(value)
        if isinstance(value, Mapping):
            return self.read_mapping(value, key, depth)
        if isinstance(value, list | tuple):
            return [self.read(one, join(key, i), depth + 1) for i, one in enumerate(value)]
        if isinstance(value, str):
            return self.read_text(value, key)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real):
            return float(value)
        problem = f"not plain data but {type(value).__name__}"
        self.refuse(key, problem, "write a number, a string, a list or a mapping")
        return None

    def read_mapping(self, value: Mapping[Any, Any], key: str, depth: int) -> dict[str, Any]:
        plain = {}
        for word, child in value.items():
            if is_key(word):
                plain[word] = self.read(child, join(key, word), depth + 1)
            else:
                nested = isinstance(word, str) and "." in word
                remedy = "nest mappings instead of writing dots" if nested else ""
                self.refuse(key, f"{reprlib.repr(word)} cannot be a key", remedy)
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
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value
