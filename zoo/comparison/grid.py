"""Keys of a recipe that a comparison varies or tunes, with their values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from zoo.comparison.results import Axis
from zoo.comparison.tuning import Trial, TunedKey, TuningRequest, count_length, is_finite_number
from zoo.config import Change
from zoo.config.command_line import parse_overrides
from zoo.config.tree import collect_issues
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError

ENCODINGS, VARY, TUNE, ENCODING = "encodings", "vary.", "tune.", "model.encoding"
SHORT_KEYS = {
    "encoding_lr": "optim.encoding_lr",
    "scale_embeddings": "model.scale_embeddings",
    "coordinates": f"{ENCODING}.0.coordinates",
}
"""Conventions by a short name, for `vary.` and `tune.`."""
SCALES = ("log", "linear")
EXAMPLE = "write tune.optim.lr=[3e-4,1e-2,log] or tune.optim.lr=[0.001,0.003]"


@dataclass(frozen=True)
class VariedKey:
    """A key that varies, and {value as people write it: value as an override writes it}."""

    key: str
    values: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Combination:
    """A value of each key that varies: its name, {key: value}, and the overrides that set it."""

    name: str
    values: Mapping[str, str]
    overrides: tuple[str, ...]
    trial_of: str | None = None
    """The name of the variant that it is a trial of."""
    trial: Trial | None = None
    """The number, length and settings of a trial; None for a variant."""


def split_grid_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the words that say what varies from all others."""
    own = [word for word in words if word.startswith((f"{ENCODINGS}=", VARY))]
    return own, [word for word in words if word not in own]


def parse_varied_keys(words: Sequence[str], overrides: Sequence[str]) -> list[VariedKey]:
    """Return the keys that vary, in the order of the words.

    Args:
        words: `encodings=[...]` and `vary.key=[...]`.
        overrides: Overrides of the recipe, which must not set the same keys.

    Raises:
        RecipeError: Something is wrong with some words; all issues are reported together.
    """
    issues: list[ConfigIssue] = []
    found: dict[str, VariedKey] = {}
    for edit in parse_overrides(words):
        key = ENCODING if edit.key == ENCODINGS else edit.key.partition(".")[2]
        key = SHORT_KEYS.get(key, key)
        with collect_issues(issues):
            values: Any = edit.value if isinstance(edit, Change) else None
            _check(edit.key, key, values, found, overrides)
            found[key] = VariedKey(key, _name_values(key, values))
    if not issues and not found:
        remedy = "write encodings=[rope,alibi] or vary.model.depth=[4,8]"
        issues.append(ConfigIssue(ARGUMENT, "", "nothing varies", remedy))
    if issues:
        raise RecipeError(*issues)
    return [*found.values()]


def _check(
    word: str, key: str, values: Any, found: Mapping[str, VariedKey], overrides: Sequence[str]
) -> None:
    def refuse(problem: str, remedy: str) -> RecipeError:
        return RecipeError(ConfigIssue(ARGUMENT, word, problem, remedy))

    if key == "seed":
        raise refuse("seeds do not vary like other keys", "write seeds=3 or seeds=[0,7]")
    if not isinstance(values, list) or not values:
        example = (
            "encodings=[rope,alibi]" if key == ENCODING else f"vary.{key or 'model.depth'}=[4,8]"
        )
        raise refuse("expected a list of values", f"write {example}")
    if key in found:
        raise refuse("the key varies twice", "write one list of all values")
    keys = [override.lstrip("~").partition("=")[0] for override in overrides]
    if any(is_below(one, key) for one in keys):
        raise refuse("the key varies and is overridden too", "leave one of them out")
    for other in found:
        # overrides are applied in their order: an option of encodings that were listed before
        is_option = other == ENCODING and key.startswith(f"{ENCODING}.")
        if not is_option and (is_below(other, key) or is_below(key, other)):
            problem = f"the key varies, and so does {other}, which overlaps it"
            remedy = (
                f"write {ENCODINGS}=[...] first" if key == ENCODING else "write one list of both"
            )
            raise refuse(problem, remedy)


def is_below(key: str, parent: str) -> bool:
    """Tell whether a key is below another one, or the same."""
    return key == parent or key.startswith(f"{parent}.")


def _name_values(key: str, values: Sequence[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        if key == ENCODING:
            value = _list_encodings(value)
        name = _format_value(value)
        if name in found:
            raise RecipeError(
                ConfigIssue(ARGUMENT, key, f"the list names {name} twice", "list it once")
            )
        found[name] = json.dumps(value, ensure_ascii=False)
    return found


def _list_encodings(value: Any) -> list[Any]:
    """Return a list in any case, so that no option of the base recipe's own entry is inherited."""
    if isinstance(value, str):
        value = value.split("+")
    if not isinstance(value, list):
        return [value]
    return [one.strip() if isinstance(one, str) else one for one in value]


def _format_value(value: Any) -> str:
    """Write a value as people do: rope, alibi+dape, rope(base=100), 4."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "+".join(map(_format_value, value))
    if not isinstance(value, dict):
        return json.dumps(value)
    name = str(value.get("name", ""))
    options = [f"{key}={_format_value(one)}" for key, one in value.items() if key != "name"]
    return name if options == [] and name else f"{name}({','.join(options)})"


def build_axes(keys: Sequence[VariedKey]) -> tuple[Axis, ...]:
    """Return the axes, titled by the last word of their keys if that tells them apart."""
    titles = [_title(one.key) for one in keys]
    found = []
    for one, title in zip(keys, titles, strict=True):
        title = title if titles.count(title) == 1 else one.key
        found.append(Axis(key=one.key, title=title, values=tuple(one.values)))
    return tuple(found)


def _title(key: str) -> str:
    words = [word for word in key.split(".") if not word.isdecimal()]
    return words[-1] if words else key


def list_combinations(keys: Sequence[VariedKey]) -> Iterator[Combination]:
    """Yield all combinations; the last key changes first."""
    titles = {axis.key: axis.title for axis in build_axes(keys)}
    for chosen in product(*(one.values.items() for one in keys)):
        values, overrides, words = {}, [], []
        for one, (value, text) in zip(keys, chosen, strict=True):
            values[one.key] = value
            overrides.append(f"{one.key}={text}")
            words.append(value if one.key == ENCODING else f"{titles[one.key]}={value}")
        yield Combination(" ".join(words), values, tuple(overrides))


def name_folders(names: Sequence[str]) -> list[str]:
    """Return a file name for each of these names, no two of them alike."""
    found: list[str] = []
    for name in names:
        word = re.sub(r"[^A-Za-z0-9._+=-]+", "-", name).strip("-.")[:80] or "variant"
        taken = sum(other == word or other.startswith(f"{word}~") for other in found)
        found.append(f"{word}~{taken + 1}" if taken else word)
    return found


def split_tuning_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the words that say what is tuned from all others."""
    return (
        [word for word in words if word.startswith(TUNE)],
        [word for word in words if not word.startswith(TUNE)],
    )


def parse_tuned_keys(words: Sequence[str], varied: Sequence[VariedKey]) -> tuple[TunedKey, ...]:
    """Return the keys that are tuned, in the order of the words.

    Args:
        words: `tune.key=[...]`. Two numbers and the word log or linear are a range; all other
            lists are choices.
        varied: The keys that vary, which are not tuned too.

    Raises:
        RecipeError: Something is wrong with some words; all issues are reported together.
    """
    issues: list[ConfigIssue] = []
    found: dict[str, TunedKey] = {}
    for edit in parse_overrides(words):
        word = edit.key
        key = SHORT_KEYS.get(word.removeprefix(TUNE), word.removeprefix(TUNE))
        values: Any = edit.value if isinstance(edit, Change) else None
        with collect_issues(issues):
            problem = _find_problem(key, found, varied)
            if problem is not None:
                raise _refuse(word, *problem)
            found[key] = _parse_key(word, key, values)
    if issues:
        raise RecipeError(*issues)
    return tuple(found.values())


def _refuse(word: str, problem: str, remedy: str) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, word, problem, remedy))


def _find_problem(
    key: str, found: Mapping[str, TunedKey], varied: Sequence[VariedKey]
) -> tuple[str, str] | None:
    """Return what forbids to tune a key, and what would be right; None if nothing does."""
    if key == "seed" or key.startswith(("evaluate.", "generate.", "predict.")):
        return "the key does not change how a model is trained for a seed", "tune another key"
    if key in found:
        return "the key is tuned twice", "write one list"
    for other in found:
        if is_below(other, key) or is_below(key, other):
            return (
                f"the key is tuned, and so is {other}, which overlaps it",
                "leave one of them out",
            )
    for one in varied:
        if is_below(one.key, key):
            return f"the key is tuned, and {one.key} varies", "leave one of them out"
    return None


def _parse_key(word: str, key: str, values: Any) -> TunedKey:
    if not isinstance(values, list) or not values:
        raise _refuse(word, "expected a range or a list of choices", EXAMPLE)
    if not any(isinstance(value, str) and value in SCALES for value in values):
        texts = [json.dumps(value, ensure_ascii=False) for value in values]
        if len(set(texts)) < len(texts):
            raise _refuse(word, "the list has a choice twice", "list it once")
        return TunedKey(key=key, scale="choices", choices=tuple(texts))

    *bounds, scale = values
    is_range = len(bounds) == 2 and scale in SCALES and all(map(is_finite_number, bounds))
    if not is_range:
        problem = "a range is two numbers and the word log or linear"
        raise _refuse(word, problem, EXAMPLE)
    low, high = map(float, bounds)
    if low >= high:
        raise _refuse(
            word, f"the range from {low:g} to {high:g} is empty", "write the low end first"
        )
    if scale == "log" and low <= 0:
        raise _refuse(
            word, f"a log range cannot begin at {low:g}", "begin above 0, or write linear"
        )
    return TunedKey(key=key, low=low, high=high, scale=scale)


def check_budget(keys: Sequence[TunedKey], budget: int) -> None:
    """Raise RecipeError if there are fewer settings than trials."""
    if any(one.scale != "choices" for one in keys):
        return
    most = 1 + math.prod(len(one.choices) for one in keys)
    if budget > most:
        problem = f"the choices give {most} settings, the recipe's own among them"
        raise _refuse("budget", problem, f"write budget={most}, or more choices")


def check_lengths(tuning: TuningRequest, trainers: Iterable[Mapping[str, Any]]) -> None:
    """Raise RecipeError if the shortest trials would have no step or epoch."""
    divisor = tuning.rungs[0][1]
    for trainer in trainers:
        key, length = count_length(trainer)
        if length < divisor:
            problem = (
                f"halving={tuning.halving} with budget={tuning.budget} trains first for "
                f"1/{divisor} of trainer.{key}={length}"
            )
            remedy = f"set trainer.max_steps to {divisor} or more, or choose a smaller budget"
            raise RecipeError(ConfigIssue(ARGUMENT, "halving", problem, remedy))


def find_setting(recipe: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key; None if the recipe has none."""
    value: Any = recipe
    for part in key.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value
