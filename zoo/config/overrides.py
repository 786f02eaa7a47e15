"""Changes of a recipe as data: keys with their new values, and keys to remove."""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zoo.config.tree import collect_issues, parse
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError, Setting, repr_entry
from zoo.options.plain import DEPTH, PlainReader, is_key


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
                value = PlainReader(issues).read(entry.value, entry.key)
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
        # text that is no YAML has no value to suggest
        with contextlib.suppress(RecipeError):
            value = parse(text, lambda line: ARGUMENT, []).data
            remedy = f"write {repr_entry(Setting(key, value))}"
    return ConfigIssue(ARGUMENT, "overrides", problem, remedy)
