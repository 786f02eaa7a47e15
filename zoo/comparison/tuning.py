"""Equal tuning: every variant has as many trials on validation data before it is compared.

A setting that suits one encoding is not handed to the others. The settings depend on the tuned keys
and the budget only, so all variants try the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from zoo.comparison.design import ChoiceAxis, Range
from zoo.comparison.grid import (
    SHORT_KEYS,
    VariedKey,
    find_setting,
    format_label,
    is_below,
    read_list,
)
from zoo.comparison.results import (
    Better,
    RangeEnd,
    SearchedKey,
    TrialResult,
    TuningResult,
    VariantTuning,
)
from zoo.config import Recipe
from zoo.config.tree import collect_issues
from zoo.errors import ARGUMENT, ConfigIssue, Message, RecipeError, Setting

TUNE = "tune"
SCALES = ("log", "linear")
EXAMPLE = Setting("optim.lr", [3e-4, 1e-2, "log"], within=TUNE)
NEAR = 0.02
"""A trial is near the best if its value differs by at most this share of the best value."""

TunedKey = Range | ChoiceAxis
Settings = Mapping[str, Any]
"""{key: value} of a trial, in addition to those of the recipe."""


@dataclass(frozen=True, kw_only=True)
class TuningRequest:
    """The keys to tune and their ranges.

    Attributes:
        keys: The tuned keys.
        budget: Trials of each variant.
        seed: The seed of all trials.
    """

    keys: tuple[TunedKey, ...]
    budget: int
    seed: int

    def list_points(self, own: Settings) -> list[Settings]:
        """Return the settings of the trials: first none, for the recipe unchanged, then others.

        Args:
            own: {key: value} that the recipe has, repeated only if no other choice is left.
        """
        known = _keep_allowed(self.keys, own)
        design = _design_points(self.keys, self.budget)
        # False sorts first: the settings of the recipe, which is a trial already, come last
        design.sort(key=lambda one: one == known)
        return [{}, *design[: self.budget - 1]]


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
    found: dict[str, TunedKey] = {}
    for word, values in tune.items():
        key = SHORT_KEYS.get(word, word)
        argument = f"{TUNE}.{word}"
        with collect_issues(issues):
            problem = _find_problem(key, found, varied)
            if problem is not None:
                raise _refuse(argument, *problem)
            found[key] = _read_key(argument, key, values)
    if issues:
        raise RecipeError(*issues)
    return tuple(found.values())


def _refuse(argument: str, problem: str, remedy: str | Message) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, argument, problem, remedy))


def _find_problem(
    key: str, found: Mapping[str, TunedKey], varied: Sequence[VariedKey]
) -> tuple[str, str] | None:
    """Return why a key cannot be tuned, and what would be right; None if it can."""
    if key == "seed" or key.startswith(("evaluate.", "generate.", "predict.")):
        return "the key does not change how a model is trained for a seed", "tune another key"
    if key in found:
        return "the key is tuned twice", "write one list"
    for other in found:
        if is_below(other, key) or is_below(key, other):
            problem = f"the key is tuned, and so is {other}, which overlaps it"
            return problem, "leave one of them out"
    for one in varied:
        if is_below(one.key, key):
            return f"the key is tuned, and {one.key} varies", "leave one of them out"
    return None


def _read_key(argument: str, key: str, values: Any) -> TunedKey:
    try:
        plain = read_list(argument, key, values)
    except RecipeError:
        problem = "expected a range or a list of choices"
        choices = Setting(EXAMPLE.key, [0.001, 0.003], within=TUNE)
        raise _refuse(argument, problem, Message("write ", EXAMPLE, " or ", choices)) from None
    if not any(isinstance(value, str) and value in SCALES for value in plain):
        if any(value in plain[:number] for number, value in enumerate(plain)):
            raise _refuse(argument, "the list has a choice twice", "list it once")
        return ChoiceAxis(key, tuple(plain))

    *bounds, scale = plain
    if len(bounds) != 2 or scale not in SCALES or not all(map(is_finite_number, bounds)):
        problem = "a range is two numbers and the word log or linear"
        raise _refuse(argument, problem, Message("write ", EXAMPLE))
    low, high = map(float, bounds)
    if low >= high:
        problem = f"the range from {low:g} to {high:g} is empty"
        raise _refuse(argument, problem, "write the low end first")
    if scale == "log" and low <= 0:
        problem = f"a log range cannot begin at {low:g}"
        raise _refuse(argument, problem, "begin above 0, or write linear")
    return Range(key, low, high, scale)


def is_finite_number(value: Any) -> bool:
    """Return whether a value is a number, and finite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def check_budget(keys: Sequence[TunedKey], budget: int) -> None:
    """Raise RecipeError if there are fewer settings than trials."""
    choices = [one for one in keys if isinstance(one, ChoiceAxis)]
    if len(choices) < len(keys):
        return
    most = 1 + math.prod(len(one.values) for one in choices)
    if budget > most:
        problem = f"the choices give {most} settings, the recipe's own among them"
        remedy = Message("write ", Setting("budget", most), ", or more choices")
        raise _refuse("budget", problem, remedy)


def describe_key(one: TunedKey) -> str:
    """Return the range or the choices of a key as people write them."""
    if isinstance(one, Range):
        return f"[{one.low:g},{one.high:g},{one.scale}]"
    return f"[{','.join(map(format_label, one.values))}]"


def _keep_allowed(keys: Sequence[TunedKey], own: Settings) -> Settings:
    """Return the recipe's own settings; none if one of them is not among those that are tried."""
    found = {}
    for one in keys:
        value: Any = own.get(one.key)
        if isinstance(one, ChoiceAxis):
            is_allowed = value in one.values
        else:
            is_allowed = is_finite_number(value) and one.low <= value <= one.high
        if not is_allowed:
            return {}
        found[one.key] = value
    return found


def _design_points(keys: Sequence[TunedKey], count: int) -> list[dict[str, Any]]:
    """Return settings that fill the ranges evenly; more of them begin with fewer of them."""
    # scipy.stats takes long to import, and a comparison without tuning needs none of it
    from scipy.stats import qmc

    ranges = [one for one in keys if isinstance(one, Range)]
    lists = [one for one in keys if isinstance(one, ChoiceAxis)]
    if ranges:
        # one seed for all comparisons, so that trials do not depend on the variants
        shares = qmc.Halton(len(ranges), rng=np.random.default_rng(0)).random(count)
    else:
        count = min(count, math.prod(len(one.values) for one in lists))
        shares = np.zeros((count, 0))
    rows = _cycle_choices([len(one.values) for one in lists], count, is_alone=not ranges)

    points = []
    for row, chosen in zip(shares, rows, strict=True):
        placed: dict[str, Any] = {
            one.key: one.place(float(share)) for one, share in zip(ranges, row, strict=True)
        }
        for choices, index in zip(lists, chosen, strict=True):
            placed[choices.key] = choices.values[index]
        points.append({one.key: placed[one.key] for one in keys})
    return points


def _cycle_choices(sizes: Sequence[int], count: int, *, is_alone: bool) -> list[tuple[int, ...]]:
    """Return indices of choices, each equally often: each list has a new order in each round.

    Args:
        sizes: The number of choices of each key.
        count: The number of rows.
        is_alone: Whether nothing but the choices tells two trials apart, so that no row is
            repeated while others are unused.
    """
    columns = []
    for number, size in enumerate(sizes):
        # a stream for each key: adding a key leaves the columns of the others unchanged
        generator = np.random.default_rng([1, number])
        column: list[int] = []
        while len(column) < count:
            column += [int(index) for index in generator.permutation(size)]
        columns.append(column[:count])
    rows = [tuple(column[index] for column in columns) for index in range(count)]
    if is_alone:
        unused = [row for row in product(*map(range, sizes)) if row not in rows]
        seen: set[tuple[int, ...]] = set()
        for index, row in enumerate(rows):
            rows[index] = unused.pop(0) if row in seen else row
            seen.add(rows[index])
    return rows


def find_own_settings(keys: Sequence[TunedKey], recipe: Recipe) -> dict[str, Any]:
    """Return {key: value} of the tuned keys, as the recipe has them."""
    plain = recipe.plain()
    return {one.key: find_setting(plain, one.key) for one in keys}


def count_length(trainer: Mapping[str, Any]) -> tuple[str, int]:
    """Return what ends training by the recipe's section `trainer`: its steps, or its epochs."""
    key = "max_steps" if trainer["max_steps"] else "max_epochs"
    return key, trainer[key]


def summarize_tuning(
    request: TuningRequest,
    monitor: str,
    better: Better,
    trials: Mapping[str, Sequence[TrialResult]],
) -> TuningResult:
    """Return what the trials of all variants found.

    Args:
        request: What was tuned.
        monitor: The validation metric.
        better: Whether high or low values of it are better.
        trials: {variant: its trials, in order}.
    """
    variants = {}
    for name, own in trials.items():
        variants[name] = VariantTuning(
            trials=tuple(own),
            best=find_best(own, better),
            near=_list_near(own, better),
            edges=_list_edges(request.keys, own, better),
        )
    return TuningResult(
        budget=request.budget,
        seed=request.seed,
        monitor=monitor,
        better=better,
        keys=tuple(SearchedKey(key=one.key, searched=describe_key(one)) for one in request.keys),
        variants=variants,
    )


def find_best(trials: Sequence[TrialResult], better: Better) -> int | None:
    """Return the number of the best trial, of equal ones the first; None if all failed."""
    sign = 1 if better == "high" else -1
    values = {number: one.value for number, one in enumerate(trials)}
    measured = {number: sign * value for number, value in values.items() if value is not None}
    return max(measured, key=lambda number: measured[number], default=None)


def _list_near(trials: Sequence[TrialResult], better: Better) -> tuple[int, ...]:
    """Return the trials near the best one."""
    best = find_best(trials, better)
    target = None if best is None else trials[best].value
    if target is None:
        return ()
    return tuple(
        number
        for number, one in enumerate(trials)
        if one.value is not None and abs(one.value - target) <= NEAR * abs(target)
    )


def _list_edges(
    keys: Sequence[TunedKey], trials: Sequence[TrialResult], better: Better
) -> tuple[RangeEnd, ...]:
    """Name the keys of which no trial lies beyond the best one's setting."""
    best = find_best(trials, better)
    edges = []
    for one in keys:
        values: list[Any] = [trial.settings.get(one.key) for trial in trials]
        numbers = [value for value in values if is_finite_number(value)]
        chosen = None if best is None else values[best]
        # with two values the better one is an end in any case
        if len(set(numbers)) < 3 or not is_finite_number(chosen):
            continue
        if chosen == min(numbers):
            edges.append(RangeEnd(key=one.key, side="lower"))
        elif chosen == max(numbers):
            edges.append(RangeEnd(key=one.key, side="upper"))
    return tuple(edges)
