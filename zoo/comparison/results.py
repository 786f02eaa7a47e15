"""What a comparison found, as plain data: variants, their cells by seed, their flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf, nan
from pathlib import Path
from typing import Any, Literal, Self

from zoo.errors import DataError
from zoo.launch.executor import State
from zoo.reporting.numbers import finite

ConditionKind = Literal["resolutions", "lengths", "data_variants", "extrapolation"]
SIZES: tuple[Literal["resolutions", "lengths"], ...] = ("resolutions", "lengths")

BY = " by "
"""Stands between the size and the extrapolation method of a condition: 256 by yarn."""
TRAINED = ""
"""The condition of training: the data as the recipe has them."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A key of the recipe that varies, such as `model.encoding`."""

    key: str
    title: str
    values: tuple[str, ...]
    """As people write them: rope, alibi+dape."""

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> Self:
        """Return what `dataclasses.asdict` gave, read from JSON."""
        return cls(**{**found, "values": tuple(found["values"])})


@dataclass(frozen=True, kw_only=True)
class ComparisonCell:
    """One training run. What is not known of it yet is empty or None."""

    seed: int
    run_dir: str
    """Relative to the output folder."""
    state: State
    error: str = ""
    """Why it failed, in a line."""
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """{condition: {metric: value}}, TRAINED among the conditions."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """{condition: why it was not measured under it}"""
    position_losses: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """{condition: mean loss by position in the window}"""
    curve: tuple[tuple[int, float], ...] = ()
    """(step, monitored metric) of each validation."""
    parameters: int | None = None
    flops: int | None = None
    """Operations of a forward pass of one sample, as `zoo show` counts them."""
    backends: tuple[str, ...] = ()
    """Backends that compute attention, each once."""
    steps: int | None = None
    minutes: float | None = None
    """Minutes of training, over all attempts."""
    step_seconds: float | None = None
    """Median over training, while other cells may run at the same time."""
    peak_memory: int | None = None
    """Peak bytes of the process."""
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """{metric: {baseline: value}} of what models must beat, on the data of this seed."""
    different_start: tuple[str, ...] = ()
    """What began otherwise than in the cells of this seed: names of weights, order of samples."""


@dataclass(frozen=True)
class Flag:
    """How a variant differs from the others, besides its values."""

    kind: str
    """In a word: parameters, attention, start, failed seeds."""
    text: str
    minor: bool = False
    """Whether it is too little to mark the variant by."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The cells of one combination of values, one for each seed."""

    name: str
    values: Mapping[str, str]
    """{key of an axis: value}"""
    cells: tuple[ComparisonCell, ...]
    flags: tuple[Flag, ...] = ()

    @property
    def flag_kinds(self) -> tuple[str, ...]:
        """The kinds of its flags, without minor ones."""
        return tuple(dict.fromkeys(flag.kind for flag in self.flags if not flag.minor))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All variants, and how they were made."""

    zoo_version: str
    created: str
    """UTC."""
    command: str
    """Repeats the comparison, and continues an unfinished one."""
    recipe: str
    base: Mapping[str, Any]
    """The recipe that all cells share, as plain data."""
    machine: Mapping[str, Any]
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    measure: str
    """The metric that is compared, such as test/accuracy."""
    better: Literal["high", "low"]
    condition_kinds: Mapping[str, ConditionKind]
    """Of all conditions but TRAINED."""
    conditions: tuple[str, ...]
    """The evaluation conditions: TRAINED first, then as the recipe lists them."""
    training_size: str
    """The size of TRAINED, for people: 16 pixels, 128 tokens."""
    windows: str = ""
    """How texts were cut: side by side, or sliding by so many tokens."""
    shared_weights: int = 0
    """How many weights all variants have, by name and shape, with equal initial values."""
    variants: tuple[Variant, ...]
    tuning: Mapping[str, Any] | None = None
    """What the trials of each variant found, if something was tuned."""
    hypotheses: tuple[Mapping[str, Any], ...] = ()
    """Claims with {text, written, runs_ended, withdrawn}, as the output folder keeps them."""

    @property
    def cells(self) -> list[ComparisonCell]:
        """The cells of all variants."""
        return [cell for variant in self.variants for cell in variant.cells]

    @property
    def extrapolation_methods(self) -> tuple[str, ...]:
        """The extrapolation methods of the conditions, each once."""
        kinds = self.condition_kinds.items()
        found = (condition.partition(BY)[2] for condition, kind in kinds if kind == "extrapolation")
        return tuple(dict.fromkeys(found))

    @property
    def bounds(self) -> tuple[float, float]:
        """The range of the measure: a loss is positive, an accuracy is at most 1."""
        return (0.0, 1.0) if self.better == "high" else (0.0, inf)

    def find_settings(self, variant: str) -> dict[str, Any]:
        """Return {key: value} that the trials of a variant found; empty without tuning."""
        if self.tuning is None:
            return {}
        own = self.tuning["variants"][variant]
        return dict(own["trials"][own["best"]]["settings"])

    def plain(self) -> dict[str, Any]:
        """Return the comparison as JSON can hold it; `read` gives it back."""
        found: dict[str, Any] = finite(asdict(self))
        return found

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the comparison of a file. Raises DataError if it holds none."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            refuse_old_version(found, path)
            later = {"tuning": None, "hypotheses": ()}
            values = {one.name: found[one.name] for one in fields(cls) if one.name not in later}
            values |= {key: found.get(key, value) for key, value in later.items()}
            values["hypotheses"] = tuple(values["hypotheses"])
            values |= {key: tuple(values[key]) for key in ("seeds", "conditions")}
            values["axes"] = tuple(Axis.from_plain(one) for one in found["axes"])
            values["variants"] = tuple(_read_variant(one) for one in found["variants"])
            return cls(**values)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(f"{path}: holds no comparison") from None


def _read_variant(found: Mapping[str, Any]) -> Variant:
    cells = tuple(_read_cell(one) for one in found["cells"])
    flags = tuple(Flag(**flag) for flag in found["flags"])
    return Variant(**{**found, "cells": cells, "flags": flags})


def _read_cell(found: Mapping[str, Any]) -> ComparisonCell:
    values = dict(found)
    values |= {key: tuple(found[key]) for key in ("backends", "different_start")}
    values["curve"] = tuple((step, value) for step, value in found["curve"])
    values["position_losses"] = {
        condition: tuple(losses) for condition, losses in found["position_losses"].items()
    }
    values["metrics"] = {
        condition: {name: nan if value is None else value for name, value in metrics.items()}
        for condition, metrics in found["metrics"].items()
    }
    return ComparisonCell(**values)


def find_direction(measure: str) -> Literal["high", "low"]:
    """Return whether high or low values of a measure are better."""
    return "low" if measure == "loss" else "high"


def refuse_old_version(found: Any, path: Path) -> None:
    """Raise DataError for a file of zoo 0.1.0, which had other keys."""
    if isinstance(found, dict) and "zoo" in found and "zoo_version" not in found:
        problem = f"was written by zoo {found['zoo']}, which named keys otherwise"
        raise DataError(f"{path}: {problem}; run the comparison again in another folder")


ANY_KEY = "*"


def has_shape(found: Any, shape: Any) -> bool:
    """Tell whether JSON is as its reader expects: files may be older, damaged or another's.

    Args:
        found: What was read.
        shape: A type, a list of one shape, a tuple of alternatives, or {key: shape}, none of whose
            keys need be there; ANY_KEY stands for all other keys.
    """
    if isinstance(shape, tuple):
        return any(has_shape(found, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(found, list) and all(has_shape(one, shape[0]) for one in found)
    if not isinstance(shape, Mapping):
        return isinstance(found, shape)
    if not isinstance(found, dict):
        return False
    for key, value in found.items():
        expected = shape.get(key, shape.get(ANY_KEY))
        if expected is not None and not has_shape(value, expected):
            return False
    return True
