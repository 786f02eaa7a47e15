"""What a comparison is going to do, as plain data: it is written before anything is trained, and read to go on."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from zoo.compare import schema
from zoo.compare.results import Axis
from zoo.compare.schema import fits
from zoo.errors import DataError
from zoo.run import atomic_io

PLAN, CELLS, RECIPES = "plan.json", "cells", "recipes"


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """A cell: the name of its folder, of its variant, and the whole recipe as plain data."""

    name: str
    variant: str
    seed: int
    recipe: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """All cells, and what their results will be told with. `chosen`: threads are ours to choose, so no part of what it is."""

    zoo_version: str
    created: str
    command: str
    recipe: str
    base: Mapping[str, Any]
    machine: Mapping[str, Any]
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    measure: str
    better: Literal["high", "low"]
    training_size: str
    windows: str
    automatic_threads: bool
    variants: Mapping[str, Mapping[str, str]]  # {name: {key: value}}
    cells: tuple[PlannedCell, ...]

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits that tell plans with other cells apart."""
        told = {cell.name: self.list_settings(cell) for cell in self.cells}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]

    def list_settings(self, cell: PlannedCell) -> dict[str, Any]:
        """{full key: value} of a cell's recipe."""
        found = dict(_leaves(cell.recipe))
        if self.automatic_threads:
            found.pop("trainer.num_threads", None)
        return found

    def contains(self, other: ComparisonPlan) -> bool:
        """Whether all cells of another plan are among these."""
        mine = {cell.name: self.list_settings(cell) for cell in self.cells}
        return all(mine.get(cell.name) == other.list_settings(cell) for cell in other.cells)

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"
        atomic_io.write(io.BytesIO(text.encode()), folder / PLAN)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises DataError where there is none."""
        try:
            found = json.loads((folder / PLAN).read_text(encoding="utf-8"))
            if not fits(found, schema.PLAN):
                raise ValueError
            axes = tuple(Axis(**{**one, "values": tuple(one["values"])}) for one in found["axes"])
            cells = tuple(PlannedCell(**one) for one in found["cells"])
            told = {one.name: found[one.name] for one in fields(cls)}
            return cls(**{**told, "axes": axes, "cells": cells, "seeds": tuple(found["seeds"])})
        except OSError as error:
            raise DataError(
                f"{folder}: holds no comparison, {PLAN}: {error.strerror or error}"
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{folder / PLAN}: holds no plan of a comparison") from None


def extend_plan(old: ComparisonPlan, new: ComparisonPlan) -> ComparisonPlan:
    """The new plan, which holds all cells of the old one: these as they are, further ones with as many threads."""
    kept = {cell.name: cell for cell in old.cells}
    threads = {"num_threads": old.machine["threads"]} if new.automatic_threads else {}

    def added(cell: PlannedCell) -> PlannedCell:
        return replace(
            cell, recipe={**cell.recipe, "trainer": {**cell.recipe["trainer"], **threads}}
        )

    cells = tuple(kept.get(cell.name) or added(cell) for cell in new.cells)
    return replace(
        new, zoo_version=old.zoo_version, created=old.created, machine=old.machine, cells=cells
    )


def list_differences(old: ComparisonPlan, new: ComparisonPlan) -> Iterator[str]:
    """What one plan has otherwise than another, in words."""
    for key in dict.fromkeys(axis.key for axis in (*old.axes, *new.axes)):
        there, here = (
            next((axis.values for axis in plan.axes if axis.key == key), ()) for plan in (old, new)
        )
        if there != here:
            yield f"{key} varies over [{','.join(there)}] there, over [{','.join(here)}] here"
    if old.seeds != new.seeds:
        yield f"seeds are {_listed(old.seeds)} there, {_listed(new.seeds)} here"
    before = {cell.name: old.list_settings(cell) for cell in old.cells}
    after = {cell.name: new.list_settings(cell) for cell in new.cells}
    told = dict.fromkeys(
        f"{key} is {json.dumps(one.get(key))} there, {json.dumps(two.get(key))} here"
        for name, one in before.items()
        if (two := after.get(name)) is not None
        for key in dict.fromkeys((*one, *two))
        if one.get(key) != two.get(key)
    )
    yield from list(told)[:10]


def _listed(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping | list | tuple) and value:
        for part, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(each, f"{key}.{part}" if key else str(part))
    else:
        yield key, value
