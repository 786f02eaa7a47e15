"""What varies: keys of a recipe with their values, as words of the command line, and all combinations of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from zoo.compare.results import Axis
from zoo.config.compose import parse_overrides
from zoo.config.tree import COMMAND_LINE, collect_issues
from zoo.errors import ConfigIssue, RecipeError

ENCODINGS, VARY, ENCODING = "encodings", "vary.", "model.encoding"


@dataclass(frozen=True)
class VariedKey:
    """A key that varies, and {value as people write it: as an override has it}."""

    key: str
    values: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Combination:
    """A value of each key that varies: its name, {key: value}, and the overrides that make it."""

    name: str
    values: Mapping[str, str]
    overrides: tuple[str, ...]


def split_grid_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words that say what varies, and all others."""
    told = [word for word in words if word.startswith((f"{ENCODINGS}=", VARY))]
    return told, [word for word in words if word not in told]


def parse_varied_keys(words: Sequence[str], overrides: Sequence[str]) -> list[VariedKey]:
    """The keys that vary, in the order of the words. Raises RecipeError with all that is wrong with them."""
    faults: list[ConfigIssue] = []
    found: dict[str, VariedKey] = {}
    for change in parse_overrides(words, faults):
        key = ENCODING if change.parts == (ENCODINGS,) else ".".join(change.parts[1:])
        with collect_issues(faults):
            values: Any = None if change.value is None else change.value.data
            _check(".".join(change.parts), key, values, found, overrides)
            found[key] = VariedKey(key, _name_values(key, values))
    if not faults and not found:
        faults.append(
            ConfigIssue(
                COMMAND_LINE,
                "",
                "nothing varies",
                "write encodings=[rope,alibi] or vary.model.depth=[4,8]",
            )
        )
    if faults:
        raise RecipeError(*faults)
    return [*found.values()]


def _check(
    word: str, key: str, values: Any, found: Mapping[str, VariedKey], overrides: Sequence[str]
) -> None:
    def refuse(problem: str, remedy: str) -> RecipeError:
        return RecipeError(ConfigIssue(COMMAND_LINE, word, problem, remedy))

    if key == "seed":
        raise refuse("seeds do not vary like other keys", "write seeds=3 or seeds=[0,7]")
    if not isinstance(values, list) or not values:
        remedy = (
            "write encodings=[rope,alibi]"
            if key == ENCODING
            else f"write vary.{key or 'model.depth'}=[4,8]"
        )
        raise refuse("expected a list of the values that it takes", remedy)
    if key in found:
        raise refuse("it varies twice", "write one list of all values")
    given = (word.lstrip("~").partition("=")[0] for word in overrides)
    if any(within(one, key) for one in given):
        raise refuse("it varies, and is given a value too", "leave one of them out")
    if other := next((one for one in found if within(one, key) or within(key, one)), None):
        raise refuse(
            f"it varies, and so does {other}, of which one is a part of the other",
            "write one list of both",
        )


def within(one: str, other: str) -> bool:
    """Whether a key stands below another, or is the same."""
    return one == other or one.startswith(f"{other}.")


def _name_values(key: str, values: Sequence[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        if key == ENCODING:  # always a list, so that no option of the base recipe's own entry stays
            entries = (
                value.split("+")
                if isinstance(value, str)
                else value
                if isinstance(value, list)
                else [value]
            )
            value = [one.strip() if isinstance(one, str) else one for one in entries]
        name = _format_value(value)
        if name in found:
            raise RecipeError(
                ConfigIssue(
                    COMMAND_LINE, key, f"{name} stands twice among its values", "list it once"
                )
            )
        found[name] = json.dumps(value, ensure_ascii=False)
    return found


def _format_value(value: Any) -> str:
    """rope, alibi+dape, rope(base=100), 4."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "+".join(map(_format_value, value))
    if isinstance(value, dict):
        options = ",".join(
            f"{key}={_format_value(each)}" for key, each in value.items() if key != "name"
        )
        return (
            f"{value.get('name', '')}({options})"
            if options or "name" not in value
            else str(value["name"])
        )
    return json.dumps(value)


def build_axes(keys: Sequence[VariedKey]) -> tuple[Axis, ...]:
    """As a comparison has them: titled by the last word of the key, where that tells them apart."""
    titles = [_title(one.key) for one in keys]
    return tuple(
        Axis(
            key=one.key,
            title=title if titles.count(title) == 1 else one.key,
            values=tuple(one.values),
        )
        for one, title in zip(keys, titles, strict=True)
    )


def _title(key: str) -> str:
    words = [word for word in key.split(".") if not word.isdecimal()]
    return words[-1] if words else key


def list_combinations(keys: Sequence[VariedKey]) -> Iterator[Combination]:
    """All of them, the last key changing first."""
    titles = {axis.key: axis.title for axis in build_axes(keys)}
    for chosen in product(*(one.values.items() for one in keys)):
        values = {one.key: name for one, (name, _) in zip(keys, chosen, strict=True)}
        name = " ".join(
            value if key == ENCODING else f"{titles[key]}={value}" for key, value in values.items()
        )
        overrides = tuple(f"{one.key}={word}" for one, (_, word) in zip(keys, chosen, strict=True))
        yield Combination(name, values, overrides)


def name_folders(names: Sequence[str]) -> list[str]:
    """Names of folders for these, no two alike."""
    found: list[str] = []
    for name in names:
        word = re.sub(r"[^A-Za-z0-9._+=-]+", "-", name).strip("-.")[:80] or "variant"
        taken = sum(other == word or other.startswith(f"{word}~") for other in found)
        found.append(f"{word}~{taken + 1}" if taken else word)
    return found
