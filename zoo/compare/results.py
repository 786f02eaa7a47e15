"""What a comparison found, as plain data: variants, their cells by seed, and what makes any of them unfair."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf, nan
from pathlib import Path
from typing import Any, Literal, Self

from zoo.errors import DataError
from zoo.reporting.json import finite

State = Literal["done", "running", "waiting", "stopped", "failed"]
Kind = Literal["resolutions", "lengths", "variants", "rules"]
SIZES: tuple[Literal["resolutions", "lengths"], ...] = ("resolutions", "lengths")
BY = " by "  # between the size and the rule of a place: 256 by yarn
TRAINED = (
    ""  # the place, among those that a model was measured at, of the data as the recipe has them
)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A key of the recipe that varies, and its values as one would write them: `model.encoding`, rope, alibi+dape."""

    key: str
    title: str
    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run. What is not known of it yet is empty or None."""

    seed: int
    run: str  # the run directory, relative to the comparison's folder
    state: State
    fault: str = ""  # why it failed, in a line
    # {place: {metric: value}}, TRAINED among them
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(
        default_factory=dict
    )  # {place: why it was not measured there}
    # {place: mean loss by place in window}
    positions: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    curve: tuple[tuple[int, float], ...] = ()  # (step, what is monitored) of each validation
    parameters: int | None = None
    interpreters: tuple[str, ...] = ()  # that compute attention, each named once
    steps: int | None = None
    minutes: float | None = None  # of training, all tries together
    step_seconds: float | None = None  # the median over training, beside what ran at the same time
    memory: int | None = None  # bytes, the largest that the process held at once
    # what of the start is not as in the cells of the same seed: weights by name, "order of samples"
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flag:
    """What a variant has otherwise than the others, beside its values."""

    what: str  # in a word: parameters, attention, start, failed seeds
    words: str  # in full
    little: bool = False  # told, but too little to mark the variant by


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The cells of one combination of values, one for each seed."""

    name: str
    values: Mapping[str, str]  # {key of an axis: value}
    cells: tuple[Cell, ...]
    unfair: tuple[Flag, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """What it is marked by, in a word each."""
        return tuple(dict.fromkeys(flag.what for flag in self.unfair if not flag.little))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All variants, and how they were made. `measure` is what the answer is given in, at each of `places`."""

    zoo: str
    made: str  # UTC
    command: str  # that repeats it, and goes on where it stood
    recipe: str
    base: Mapping[str, Any]  # the recipe that all cells share, as plain data
    machine: Mapping[str, Any]
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    measure: str  # test/accuracy, test/loss
    better: Literal["high", "low"]
    kinds: Mapping[str, Kind]  # {place: what it is}, of all places but TRAINED
    places: tuple[str, ...]  # TRAINED first, then as the recipe lists them
    trained: str  # what TRAINED is, for people: 16 pixels, 128 tokens
    windows: str = ""  # of texts, how they were cut: side by side, or sliding by so many tokens
    shared: int = (
        0  # weights that all variants have, by name and shape, and that began equal in all of them
    )
    variants: tuple[Variant, ...]

    @property
    def bounds(self) -> tuple[float, float]:
        """What the measure cannot pass: a loss nothing, a share nothing and all."""
        return (0.0, 1.0) if self.better == "high" else (0.0, inf)

    def plain(self) -> dict[str, Any]:
        """As JSON has it, which knows finite numbers alone. `read` gives the comparison back."""
        found: dict[str, Any] = finite(asdict(self))
        return found

    @classmethod
    def read(cls, path: Path) -> Self:
        """The comparison that a file holds. Raises DataError where it holds none."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            axes = tuple(Axis(**{**one, "values": tuple(one["values"])}) for one in found["axes"])
            variants = tuple(_variant(one) for one in found["variants"])
            told = {one.name: found[one.name] for one in fields(cls)}
            lists = {key: tuple(told[key]) for key in ("seeds", "places")}
            return cls(**{**told, **lists, "axes": axes, "variants": variants})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(f"{path}: holds no comparison") from None


def _variant(found: Mapping[str, Any]) -> Variant:
    cells = tuple(_cell(one) for one in found["cells"])
    return Variant(
        **{**found, "unfair": tuple(Flag(**flag) for flag in found["unfair"]), "cells": cells}
    )


def _cell(found: Mapping[str, Any]) -> Cell:
    lists = {key: tuple(found[key]) for key in ("interpreters", "differs")}
    curve = tuple((step, value) for step, value in found["curve"])
    positions = {place: tuple(losses) for place, losses in found["positions"].items()}
    metrics = {
        place: {name: nan if value is None else value for name, value in each.items()}
        for place, each in found["metrics"].items()
    }
    return Cell(**{**found, **lists, "curve": curve, "positions": positions, "metrics": metrics})
