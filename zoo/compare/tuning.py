"""Equal tuning: every variant tries the same settings on validation data before it is compared.

A setting that suits one encoding is not handed to the others. The design of settings depends on
the tuned keys and the budget alone, so that no variant has more tries, or better placed ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from zoo.compare.grid import SHORT_KEYS, VariedKey, is_below
from zoo.compare.results import BY, Comparison
from zoo.config.compose import parse_overrides
from zoo.config.tree import COMMAND_LINE, collect_issues
from zoo.errors import ConfigIssue, RecipeError
from zoo.reporting.tables import format_markdown

TUNE = "tune."
SCALES = ("log", "linear")
DIGITS = 4
"""Significant digits of a setting, so that recipes stay legible."""
NEAR = 0.02
"""A trial is near the best if its value differs by at most this share of the best value."""
EXAMPLE = "write tune.optim.lr=[3e-4,1e-2,log] or tune.optim.lr=[0.001,0.003]"
CONVENTIONS = (
    "optim.lr",
    "optim.encoding_lr",
    "model.scale_embeddings",
    "model.position_augmentation",
)
"""Keys that are known to reverse rankings: each is said to be held, varied or tuned."""


@dataclass(frozen=True, kw_only=True)
class TunedKey:
    """A key that is tuned: a range, or choices as an override writes them."""

    key: str
    low: float = math.nan
    high: float = math.nan
    scale: Literal["log", "linear", "choices"]
    choices: tuple[str, ...] = ()

    def place(self, share: float) -> float:
        """Return the setting at a share of the range, from 0 at its low end to 1."""
        if self.scale == "log":
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + share * (self.high - self.low)
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def describe(self) -> str:
        """Return the range or the choices as the command line has them."""
        if self.scale == "choices":
            return f"[{','.join(self.choices)}]"
        return f"[{self.low:g},{self.high:g},{self.scale}]"


@dataclass(frozen=True, kw_only=True)
class TuningRequest:
    """What is tuned for each variant, and by how many trials on which seed."""

    keys: tuple[TunedKey, ...]
    budget: int
    seed: int

    @property
    def points(self) -> list[dict[str, str]]:
        """The settings of each trial as {key: text of an override}; the first has none."""
        return [{}, *_design_points(self.keys, self.budget - 1)]


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
    for override in parse_overrides(words, issues):
        word = ".".join(override.parts)
        key = SHORT_KEYS.get(word.removeprefix(TUNE), word.removeprefix(TUNE))
        values: Any = None if override.value is None else override.value.data
        with collect_issues(issues):
            problem = _find_problem(key, found, varied)
            if problem is not None:
                raise _refuse(word, *problem)
            found[key] = _parse_key(word, key, values)
    if issues:
        raise RecipeError(*issues)
    return tuple(found.values())


def _refuse(word: str, problem: str, remedy: str) -> RecipeError:
    return RecipeError(ConfigIssue(COMMAND_LINE, word, problem, remedy))


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
    is_range = len(bounds) == 2 and scale in SCALES and all(map(_is_finite_number, bounds))
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


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def check_budget(keys: Sequence[TunedKey], budget: int) -> None:
    """Raise RecipeError if there are fewer settings than trials."""
    if any(one.scale != "choices" for one in keys):
        return
    most = 1 + math.prod(len(one.choices) for one in keys)
    if budget > most:
        problem = f"the choices give {most} settings, the recipe's own among them"
        raise _refuse("budget", problem, f"write budget={most}, or more choices")


def _design_points(keys: Sequence[TunedKey], count: int) -> list[dict[str, str]]:
    """Return settings that fill the ranges evenly; more of them begin with fewer of them."""
    # scipy.stats takes long to import, and a comparison without tuning needs none of it
    from scipy.stats import qmc

    ranges = [one for one in keys if one.scale != "choices"]
    lists = [one for one in keys if one.scale == "choices"]
    shares = np.zeros((count, 0))
    if ranges and count:
        shares = qmc.Halton(len(ranges), rng=np.random.default_rng(0)).random(count)
    rows = _cycle_choices(lists, count, is_alone=not ranges)

    points = []
    for row, chosen in zip(shares, rows, strict=True):
        placed = {
            one.key: repr(one.place(float(share))) for one, share in zip(ranges, row, strict=True)
        }
        both = placed | chosen
        points.append({one.key: both[one.key] for one in keys})
    return points


def _cycle_choices(keys: Sequence[TunedKey], count: int, *, is_alone: bool) -> list[dict[str, str]]:
    """Return choices, each equally often: of every list a new order in each round."""
    columns = []
    for number, one in enumerate(keys):
        drawn = np.random.default_rng([1, number])
        column: list[str] = []
        while len(column) < count:
            column += [one.choices[index] for index in drawn.permutation(len(one.choices))]
        columns.append(column[:count])
    rows = [tuple(column[index] for column in columns) for index in range(count)]
    if is_alone:
        # nothing else tells two trials of one combination apart
        unused = [row for row in product(*(one.choices for one in keys)) if row not in rows]
        seen: set[tuple[str, ...]] = set()
        for index, row in enumerate(rows):
            rows[index] = unused.pop(0) if row in seen else row
            seen.add(rows[index])
    names = [one.key for one in keys]
    return [dict(zip(names, row, strict=True)) for row in rows]


def summarize_tuning(
    request: TuningRequest, monitor: str, better: str, trials: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Return what the trials of all variants found, as plain data.

    Args:
        request: What was tuned.
        monitor: The validation metric.
        better: Whether high or low values of it are better.
        trials: {variant: its trials as {settings, value, error}, in order}. Without a value a
            trial became non-finite.
    """
    variants = {}
    for name, own in trials.items():
        variants[name] = {
            "trials": [*own],
            "best": find_best(own, better),
            "near": _list_near(own, better),
            "edges": _list_edges(request.keys, own, better),
        }
    return {
        "budget": request.budget,
        "seed": request.seed,
        "monitor": monitor,
        "better": better,
        "keys": [
            {"key": one.key, "searched": one.describe(), "choices": [*one.choices]}
            for one in request.keys
        ],
        "variants": variants,
    }


def find_best(trials: Sequence[Mapping[str, Any]], better: str) -> int | None:
    """Return the number of the best trial, of equal ones the first; None if all failed."""
    sign = 1 if better == "high" else -1
    measured = [number for number, one in enumerate(trials) if one["value"] is not None]
    return max(measured, key=lambda number: sign * trials[number]["value"], default=None)


def _list_near(trials: Sequence[Mapping[str, Any]], better: str) -> list[int]:
    best = find_best(trials, better)
    if best is None:
        return []
    value = trials[best]["value"]
    return [
        number
        for number, one in enumerate(trials)
        if one["value"] is not None and abs(one["value"] - value) <= NEAR * abs(value)
    ]


def _list_edges(
    keys: Sequence[TunedKey], trials: Sequence[Mapping[str, Any]], better: str
) -> list[dict[str, str]]:
    """Name the keys of which no trial lies beyond the best one's setting."""
    best = find_best(trials, better)
    edges = []
    for one in keys:
        values = [trial["settings"].get(one.key) for trial in trials]
        numbers = [value for value in values if _is_finite_number(value)]
        chosen = None if best is None else values[best]
        if len(set(numbers)) < 3 or not _is_finite_number(chosen):
            continue
        if chosen in (min(numbers), max(numbers)):
            side = "lower" if chosen == min(numbers) else "upper"
            edges.append({"key": one.key, "side": side, "searched": one.describe()})
    return edges


def format_tuning(comparison: Comparison) -> str:
    """Format what tuning found as Markdown; empty if nothing was tuned."""
    tuning = comparison.tuning
    if tuning is None:
        return ""
    keys = [one["key"] for one in tuning["keys"]]
    rows = []
    for name, found in tuning["variants"].items():
        best = found["trials"][found["best"]]
        rows.append(
            [
                name,
                *(_format_setting(best["settings"].get(key)) for key in keys),
                f"{found['best']}",
                _format_value(best["value"]),
                _format_value(found["trials"][0]["value"]),
                f"{len(found['near'])} of {tuning['budget']}",
            ]
        )
    near = f"within {NEAR:.0%}"
    head = ["variant", *keys, "best trial", tuning["monitor"], "at the recipe's own", near]
    table = format_markdown(head, rows, ("variant",))
    notes = [describe_tuning(comparison)]
    notes += [f"- {line}" for line in list_warnings(comparison)]
    return "## Tuning\n\n" + table + "\n\n" + "\n".join(notes)


def describe_tuning(comparison: Comparison) -> str:
    """Say how variants were tuned; empty if nothing was."""
    tuning = comparison.tuning
    if tuning is None:
        return ""
    searched = ", ".join(f"{one['key']} over {one['searched']}" for one in tuning["keys"])
    return (
        f"Each variant was tuned by {tuning['budget']} trials with the same settings: {searched}; "
        f"trial 0 is the recipe's own. The best {tuning['monitor']} of seed {tuning['seed']} "
        "decided; no trial was tested, and no seed of the results was used."
    )


def describe_conventions(comparison: Comparison) -> str:
    """Say which keys were held equal, which varied and which were tuned."""
    varied = [axis.key for axis in comparison.axes]
    tuned = [one["key"] for one in comparison.tuning["keys"]] if comparison.tuning else []
    named = [*varied, *tuned]
    held = [
        key
        for key in CONVENTIONS
        if not any(one == key or one.endswith(f".{key}") for one in named)
    ]
    parts = [f"held equal: {', '.join(held)} and all other keys"]
    parts.append(f"varied: {', '.join(varied)}")
    if tuned:
        parts.append(f"tuned for each variant: {', '.join(tuned)}")
    text = "; ".join(parts)
    if not any(one.endswith(".coordinates") for one in named):
        text += "; coordinates: each encoding's own"
    methods = _list_methods(comparison)
    if methods:
        text += f"; the same trained models are evaluated as they are and by {', '.join(methods)}"
    return f"{text[0].upper()}{text[1:]}. An encoding's own options are part of its entry."


def _list_methods(comparison: Comparison) -> list[str]:
    """Return the extrapolation methods of the conditions, each once."""
    kinds = comparison.condition_kinds.items()
    found = (condition.partition(BY)[2] for condition, kind in kinds if kind == "extrapolation")
    return [*dict.fromkeys(found)]


def list_warnings(comparison: Comparison) -> list[str]:
    """Name variants whose best setting lies at an edge, and trials without a value."""
    found = []
    variants = comparison.tuning["variants"] if comparison.tuning else {}
    for name, own in variants.items():
        for edge in own["edges"]:
            setting = own["trials"][own["best"]]["settings"][edge["key"]]
            found.append(
                f"{name}: {edge['key']} = {_format_setting(setting)} lies at the {edge['side']} "
                f"edge of what was tried of {edge['searched']}; widen it"
            )
        failed = [str(number) for number, one in enumerate(own["trials"]) if one["value"] is None]
        if failed:
            found.append(f"{name}: trials {', '.join(failed)} became non-finite")
    return found


def _format_setting(value: Any) -> str:
    return f"{value:g}" if _is_finite_number(value) else json.dumps(value, ensure_ascii=False)


def _format_value(value: float | None) -> str:
    return "non-finite" if value is None else f"{value:.4f}"
