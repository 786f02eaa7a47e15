"""Equal tuning: every variant has as many trials on validation data before it is compared.

A setting that suits one encoding is not handed to the others. A design of settings depends on the
tuned keys and the budget alone. With `sampler=tpe` the second half depends on what the variant's
own trials came to, and with `halving=2` so does which of them are trained for longer; numbers and
lengths of trials are the same for all variants.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from zoo.comparison.results import Comparison
from zoo.packages import explain_imports
from zoo.reporting.tables import format_markdown

DIGITS = 4
"""Significant digits of a setting, so that recipes stay legible."""
SMALLEST_BUDGET = 4
"""Trials that TPE needs, of which it chooses half."""
Sampler = Literal["design", "tpe"]
Setting = Mapping[str, str]
"""{key: text of an override}; the settings of a trial beside those of the recipe."""
NEAR = 0.02
"""A trial is near the best if its value differs by at most this share of the best value."""
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
            return self.round(self.low * (self.high / self.low) ** share)
        return self.round(self.low + share * (self.high - self.low))

    def round(self, value: float) -> float:
        """Return a setting of the range with few digits."""
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def describe(self) -> str:
        """Return the range or the choices as the command line has them."""
        if self.scale == "choices":
            return f"[{','.join(self.choices)}]"
        return f"[{self.low:g},{self.high:g},{self.scale}]"


@dataclass(frozen=True)
class Trial:
    """A training of a variant: the number of its settings, how often it survived, the settings."""

    number: int
    rung: int
    setting: Setting


@dataclass(frozen=True, kw_only=True)
class TuningRequest:
    """The keys to tune, the trials of each variant, their seed, and how to choose settings."""

    keys: tuple[TunedKey, ...]
    budget: int
    seed: int
    sampler: Sampler = "design"
    halving: int | None = None

    def list_points(self, own: Mapping[str, Any]) -> list[Setting]:
        """Return the settings of a design: first none, for the recipe as it is, then others.

        Args:
            own: {key: value} that the recipe has, repeated only if no other choice is left.
        """
        known = _keep_allowed(self.keys, own)
        design = _design_points(self.keys, self.budget)
        design.sort(key=lambda one: one == known)
        return [{}, *design[: self.budget - 1]]

    @property
    def rungs(self) -> list[tuple[int, int]]:
        """(trials, by what the length of training is divided) of each rung."""
        if self.halving is None:
            return [(self.budget, 1)]
        last = 0
        while self.budget // self.halving ** (last + 1):
            last += 1
        return [
            (self.budget // self.halving**rung, self.halving ** (last - rung))
            for rung in range(last + 1)
        ]

    @property
    def count(self) -> int:
        """How often each variant is trained."""
        return sum(trials for trials, _ in self.rungs)

    def list_trials(
        self, values: Mapping[tuple[int, int], float | None], own: Mapping[str, Any], better: str
    ) -> list[Trial]:
        """Return the trials of a variant, as far as ended ones decide them.

        Args:
            values: {(number, rung): validation metric} of trials that have ended, None if one
                became non-finite.
            own: {key: value} that the recipe itself has.
            better: Whether high or low values are better.
        """
        if self.sampler == "tpe":
            return self._list_by_tpe(values, own, better)
        trials = [Trial(number, 0, point) for number, point in enumerate(self.list_points(own))]
        settings = {one.number: one.setting for one in trials}
        for rung, (count, _) in enumerate(self.rungs[1:], start=1):
            before = [one for one in trials if one.rung == rung - 1]
            reached = {one.number: values.get((one.number, rung - 1)) for one in before}
            if any((one.number, rung - 1) not in values for one in before):
                break
            numbers = _order(reached, better)[:count]
            trials += [Trial(number, rung, settings[number]) for number in sorted(numbers)]
        return trials

    def _list_by_tpe(
        self, values: Mapping[tuple[int, int], float | None], own: Mapping[str, Any], better: str
    ) -> list[Trial]:
        """Return the first half of the design, then what TPE suggests after all before it."""
        trials = [Trial(number, 0, point) for number, point in enumerate(self.list_points(own))]
        trials = trials[: count_shared(self.budget)]
        while len(trials) < self.budget and all((one.number, 0) in values for one in trials):
            found = [(one.setting, values[one.number, 0]) for one in trials]
            found[0] = _keep_allowed(self.keys, own), found[0][1]
            suggested = suggest_by_tpe(self.keys, found, better, [self.seed, len(trials)])
            trials.append(Trial(len(trials), 0, suggested))
        return trials


def count_shared(budget: int) -> int:
    """Return how many trials of `tpe` have the same settings for all variants."""
    return -(-budget // 2)


def _order(reached: Mapping[int, float | None], better: str) -> list[int]:
    """Return the numbers of trials with a value, the best first, of equal ones the first."""
    sign = -1 if better == "high" else 1
    return sorted(
        (number for number, value in reached.items() if value is not None),
        key=lambda number: (sign * (reached[number] or 0.0), number),
    )


def _keep_allowed(keys: Sequence[TunedKey], own: Mapping[str, Any]) -> Setting:
    """Return the recipe's own settings as texts; none if one of them lies outside of its range."""
    found = {}
    for one in keys:
        value = own.get(one.key)
        if one.scale == "choices":
            text = next((text for text in one.choices if json.loads(text) == value), None)
        else:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            number = float(value) if is_number and value is not None else math.nan
            text = repr(number) if one.low <= number <= one.high else None
        if text is None:
            return {}
        found[one.key] = text
    return found


def suggest_by_tpe(
    keys: Sequence[TunedKey],
    found: Sequence[tuple[Setting, float | None]],
    better: str,
    seed: Sequence[int],
) -> Setting:
    """Return the setting that a tree-structured Parzen estimator would try next.

    The study is made anew of the trials that have ended, and its sampler begins with a seed of its
    own, so that a comparison that was interrupted asks for the same.

    Args:
        keys: What is tuned.
        found: Settings and values; those without settings are left out, and those without a value
            count as worse than all others.
        better: Whether high or low values are better.
        seed: Numbers that the sampler's seed is made of.
    """
    with explain_imports():
        import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        one.key: optuna.distributions.CategoricalDistribution(one.choices)
        if one.scale == "choices"
        else optuna.distributions.FloatDistribution(one.low, one.high, log=one.scale == "log")
        for one in keys
    }
    number = int(np.random.SeedSequence([*seed]).generate_state(1)[0])
    sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=0)
    direction: Literal["maximize", "minimize"] = "maximize" if better == "high" else "minimize"
    study = optuna.create_study(sampler=sampler, direction=direction)
    states = optuna.trial.TrialState
    for setting, value in found:
        if not setting:
            continue
        params = {
            one.key: setting[one.key] if one.scale == "choices" else float(setting[one.key])
            for one in keys
        }
        state = states.PRUNED if value is None else states.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(
                params=params, distributions=distributions, value=value, state=state
            )
        )
    chosen = study.ask(distributions).params
    return {
        one.key: chosen[one.key] if one.scale == "choices" else repr(one.round(chosen[one.key]))
        for one in keys
    }


def _design_points(keys: Sequence[TunedKey], count: int) -> list[dict[str, str]]:
    """Return settings that fill the ranges evenly; more of them begin with fewer of them."""
    # scipy.stats takes long to import, and a comparison without tuning needs none of it
    from scipy.stats import qmc

    ranges = [one for one in keys if one.scale != "choices"]
    lists = [one for one in keys if one.scale == "choices"]
    if ranges:
        shares = qmc.Halton(len(ranges), rng=np.random.default_rng(0)).random(count)
    else:
        count = min(count, math.prod(len(one.choices) for one in lists))
        shares = np.zeros((count, 0))
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


def count_length(trainer: Mapping[str, Any]) -> tuple[str, int]:
    """Return what ends training by the recipe's section `trainer`: its steps, or its epochs."""
    key = "max_steps" if trainer["max_steps"] else "max_epochs"
    return key, trainer[key]


def shorten_training(trainer: Mapping[str, Any], divisor: int) -> Iterator[str]:
    """Yield the override that divides the length of training; none for a divisor of 1."""
    key, length = count_length(trainer)
    if divisor > 1:
        yield f"trainer.{key}={length // divisor}"


def describe_length(trainer: Mapping[str, Any]) -> str:
    """Return how long the recipe's section `trainer` trains, in words: 500 steps."""
    key, length = count_length(trainer)
    unit = key.removeprefix("max_")
    return f"{length:,} {unit if length != 1 else unit.removesuffix('s')}"


def is_finite_number(value: Any) -> bool:
    """Tell whether a value is a number, and finite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def summarize_tuning(
    request: TuningRequest,
    monitor: str,
    better: str,
    trials: Mapping[str, Sequence[Any]],
    lengths: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what the trials of all variants found, as plain data.

    Args:
        request: What was tuned.
        monitor: The validation metric.
        better: Whether high or low values of it are better.
        trials: {variant: its trials as {settings, value, rung}, in order}. The value is that of
            the longest training of a trial, and its rung says how often it survived before; without
            a value it became non-finite.
        lengths: How long the trials of each rung are, in words.
    """
    variants = {}
    for name, own in trials.items():
        variants[name] = {
            "trials": [*own],
            "best": find_best(own, better),
            "near": _list_near(own, better),
            "edges": _list_edges(request.keys, own, better),
        }
    summary: dict[str, Any] = {
        "budget": request.budget,
        "seed": request.seed,
        "monitor": monitor,
        "better": better,
        "sampler": request.sampler,
        "keys": [
            {"key": one.key, "searched": one.describe(), "choices": [*one.choices]}
            for one in request.keys
        ],
        "variants": variants,
    }
    if request.halving is not None:
        pairs = zip(request.rungs, lengths, strict=True)
        summary["rungs"] = [{"trials": trials, "length": length} for (trials, _), length in pairs]
    return summary


def find_best(trials: Sequence[Mapping[str, Any]], better: str) -> int | None:
    """Return the number of the best trial of those that trained longest, of equal ones the first.

    None if all failed.
    """
    sign = 1 if better == "high" else -1
    measured = [number for number, one in enumerate(trials) if one["value"] is not None]
    return max(
        measured,
        key=lambda number: (trials[number].get("rung", 0), sign * trials[number]["value"]),
        default=None,
    )


def _list_near(trials: Sequence[Mapping[str, Any]], better: str) -> list[int]:
    """Return the trials near the best one, of those that trained as long."""
    best = find_best(trials, better)
    if best is None:
        return []
    value, rung = trials[best]["value"], trials[best].get("rung", 0)
    return [
        number
        for number, one in enumerate(trials)
        if one["value"] is not None
        and one.get("rung", 0) == rung
        and abs(one["value"] - value) <= NEAR * abs(value)
    ]


def _list_edges(
    keys: Sequence[TunedKey], trials: Sequence[Mapping[str, Any]], better: str
) -> list[dict[str, str]]:
    """Name the keys of which no trial lies beyond the best one's setting."""
    best = find_best(trials, better)
    edges = []
    for one in keys:
        values = [trial["settings"].get(one.key) for trial in trials]
        numbers = [value for value in values if is_finite_number(value)]
        chosen = None if best is None else values[best]
        if len(set(numbers)) < 3 or not is_finite_number(chosen):
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
        rung = best.get("rung", 0)
        compared = sum(one.get("rung", 0) == rung for one in found["trials"])
        rows.append(
            [
                name,
                *(_format_setting(best["settings"].get(key)) for key in keys),
                f"{found['best']}",
                _format_value(best, rung),
                _format_value(found["trials"][0], rung),
                f"{len(found['near'])} of {compared}",
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
    how = " with the same settings"
    if tuning.get("sampler") == "tpe":
        shared = count_shared(tuning["budget"])
        how = f", the first {shared} with the same settings, the others chosen by TPE"
    text = (
        f"Each variant was tuned by {tuning['budget']} trials{how}: {searched}; trial 0 is the "
        f"recipe's own. "
    )
    if "rungs" in tuning:
        rungs = [f"{one['trials']} of {one['length']}" for one in tuning["rungs"]]
        text += (
            f"Successive halving, each length trained anew: {', '.join(rungs)}; the best went on. "
        )
    return (
        f"{text}The best {tuning['monitor']} of seed {tuning['seed']} decided; no trial was "
        "tested, and no seed of the results was used."
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
    if methods := comparison.extrapolation_methods:
        text += f"; the same trained models are evaluated as they are and by {', '.join(methods)}"
    return f"{text[0].upper()}{text[1:]}. An encoding's own options are part of its entry."


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
    return f"{value:g}" if is_finite_number(value) else json.dumps(value, ensure_ascii=False)


def _format_value(trial: Mapping[str, Any], rung: int) -> str:
    """Format a trial's value; in brackets if it ended on a shorter rung than this one."""
    text = "non-finite" if trial["value"] is None else f"{trial['value']:.4f}"
    return text if trial.get("rung", 0) == rung else f"({text})"
