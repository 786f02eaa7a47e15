"""The keys that a comparison tunes: ranges and choices, read from the command line or Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zoo.comparison.design import ChoiceAxis, Range
from zoo.comparison.grid import SHORT_KEYS, VariedKey, is_below, read_list
from zoo.config.tree import collect_issues
from zoo.errors import ARGUMENT, ConfigIssue, Message, RecipeError, Setting
from zoo.options.plain import format_label

TUNE = "tune"
SCALES = ("log", "linear")
EXAMPLE = Setting("optim.lr", [3e-4, 1e-2, "log"], within=TUNE)

TunedKey = Range | ChoiceAxis
Settings = Mapping[str, Any]
"""{key: value} of a trial, in addition to those of the recipe."""


@dataclass(frozen=True, kw_only=True)
class TuningRequest:
    """The keys to tune and their ranges.

    Attributes:
        keys: The tuned keys.
        budget: Trials of each variant in each study.
    """

    keys: tuple[TunedKey, ...]
    budget: int


def read_tuned_keys(
    tune: Mapping[str, Any], varied: Sequence[VariedKey] = ()
) -> tuple[TunedKey, ...]:
    """Read the keys that are tuned.

    Args:
        tune: {key: list}. Two numbers and the word log or linear are a range; any other list holds
            choices.
        varied: The keys that vary, which cannot be tuned too.

    Raises:
        RecipeError: A key or a list is wrong; all issues are reported together.
    """
    issues: list[ConfigIssue] = []
    tuned: dict[str, TunedKey] = {}
    for word, values in tune.items():
        key = SHORT_KEYS.get(word, word)
        argument = f"{TUNE}.{word}"
        with collect_issues(issues):
            conflict = _find_problem(key, tuned, varied)
            if conflict is not None:
                raise _refuse(argument, *conflict)
            tuned[key] = _read_key(argument, key, values)
    if issues:
        raise RecipeError(*issues)
    return tuple(tuned.values())


def _refuse(argument: str, message: str, hint: str | Message) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, argument, message, hint))


def _find_problem(
    key: str, tuned: Mapping[str, TunedKey], varied: Sequence[VariedKey]
) -> tuple[str, str] | None:
    """Return why a key cannot be tuned, and what would be right; None if it can."""
    if key == "seed" or key.startswith(("evaluate.", "generate.", "predict.")):
        return "the key does not change how a model is trained for a seed", "tune another key"
    if key in tuned:
        return "the key is tuned twice", "write one list"
    for other_key in tuned:
        if is_below(other_key, key) or is_below(key, other_key):
            message = f"the key is tuned, and so is {other_key}, which overlaps it"
            return message, "leave one of them out"
    for varied_key in varied:
        if is_below(varied_key.key, key):
            return f"the key is tuned, and {varied_key.key} varies", "leave one of them out"
    return None


def _read_key(argument: str, key: str, values: Any) -> TunedKey:
    try:
        plain = read_list(argument, key, values)
    except RecipeError:
        message = "expected a range or a list of choices"
        choices = Setting(EXAMPLE.key, [0.001, 0.003], within=TUNE)
        raise _refuse(argument, message, Message("write ", EXAMPLE, " or ", choices)) from None
    # the word of the scale tells a range from two choices
    if not any(isinstance(value, str) and value in SCALES for value in plain):
        if any(value in plain[:number] for number, value in enumerate(plain)):
            raise _refuse(argument, "the list has a choice twice", "list it once")
        return ChoiceAxis(key, tuple(plain))

    *bounds, scale = plain
    if len(bounds) != 2 or scale not in SCALES or not all(map(is_finite_number, bounds)):
        message = "a range is two numbers and the word log or linear"
        raise _refuse(argument, message, Message("write ", EXAMPLE))
    low, high = map(float, bounds)
    if low >= high:
        message = f"the range from {low:g} to {high:g} is empty"
        raise _refuse(argument, message, "write the low end first")
    if scale == "log" and low <= 0:
        message = f"a log range cannot begin at {low:g}"
        raise _refuse(argument, message, "begin above 0, or write linear")
    return Range(key, low, high, scale)


def is_finite_number(value: Any) -> bool:
    """Return whether a value is a number, and finite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def describe_key(one: TunedKey) -> str:
    """Return the range or the choices of a key as people write them."""
    if isinstance(one, Range):
        return f"[{one.low:g},{one.high:g},{one.scale}]"
    return f"[{','.join(map(format_label, one.values))}]"
