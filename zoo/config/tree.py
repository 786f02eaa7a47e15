"""A recipe before it is typed: plain data, and the location of each of its keys."""

from __future__ import annotations

import dataclasses
import reprlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from zoo import registry
from zoo.errors import ConfigIssue, RecipeError
from zoo.registry import Choice

COMMAND_LINE = "command line"
DEPTH = 32
NODES = 10_000

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Tree:
    """Plain data, and {full key: "path:line" or "command line"}, with "" for the whole."""

    data: Any
    locations: Mapping[str, str]

    def locate(self, key: str) -> str:
        """Return the location of a key, or of the nearest key above it."""
        return locate(self.locations, key)

    def make_error(self, key: str, problem: str, remedy: str = "") -> RecipeError:
        """Return the error of one key."""
        return RecipeError(ConfigIssue(self.locate(key), key, problem, remedy))


def locate(locations: Mapping[str, str], key: str) -> str:
    """Return the location of a key, or of the nearest key above it; empty if there is none."""
    return next((locations[known] for known in list_ancestors(key) if known in locations), "")


def join(key: str, part: str | int) -> str:
    """Return the full key of a part: `model` and `dim` give `model.dim`."""
    return f"{key}.{part}" if key else str(part)


def list_ancestors(key: str) -> Iterator[str]:
    """Yield a key and those above it: `model.dim`, `model` and the empty key of the whole."""
    while key:
        yield key
        key = key.rpartition(".")[0]
    yield ""


def list_children(data: object) -> Iterable[tuple[str | int, Any]]:
    """Return the parts of a mapping or a list with their values; nothing for a scalar."""
    if isinstance(data, Mapping):
        return data.items()
    return enumerate(data) if isinstance(data, list | tuple) else ()


def walk(data: object, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every full key with its value, those of containers before those in them."""
    yield key, data
    for part, child in list_children(data):
        yield from walk(child, join(key, part))


def is_key(word: object) -> bool:
    """Return whether a word can be a key: printable, no dot, at most 100 characters."""
    return isinstance(word, str) and 0 < len(word) <= 100 and "." not in word and word.isprintable()


def is_interpolation(value: object) -> bool:
    """Return whether a value waits for another, as `${model.dim}` does."""
    return isinstance(value, str) and "${" in value


def to_plain(typed: Any) -> Any:
    """Turn a typed value into dicts, lists and scalars."""
    if isinstance(typed, Choice):
        return {"name": typed.name, **to_plain(typed.options)}
    if dataclasses.is_dataclass(typed):
        fields = [field.name for field in dataclasses.fields(typed) if field.init]
        return {name: to_plain(getattr(typed, name)) for name in fields}
    if isinstance(typed, Mapping):
        return {word: to_plain(each) for word, each in typed.items()}
    return [to_plain(each) for each in typed] if isinstance(typed, list | tuple) else typed


def format_value(value: object) -> str:
    """Write a value as YAML would, shortened."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else reprlib.repr(value)


def suggest(word: str, known: Iterable[str], parent: str = "") -> str:
    """Return a remedy: the nearest known word as a key below `parent`, or the known words."""
    known = [one for one in known if one != word]
    if not known:
        return "none is known here"
    hint = registry.nearest(word, known)
    if hint.startswith("did you mean ") and parent:
        return hint.replace("did you mean ", f"did you mean {parent}.", 1)
    return textwrap.shorten(hint, 110, placeholder=" ...")


@contextmanager
def collect_issues(issues: list[ConfigIssue]) -> Iterator[None]:
    """Collect the issues that the block raises, and go on after it."""
    try:
        yield
    except RecipeError as error:
        issues.extend(error.issues)
