"""A cell as its files have it: what it was measured at, what it cost, and what it began with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.compare import schema, status
from zoo.compare.plan import CELLS, ComparisonPlan, PlannedCell
from zoo.compare.results import BY, SIZES, TRAINED, Cell, Kind
from zoo.compare.schema import fits
from zoo.run import extrapolation, loggers
from zoo.run.callbacks.manifest import END, START

MEASURED = "measured.json"  # what `zoo eval` told the comparison; its own file is that of whoever asks next


@dataclass(frozen=True)
class Files:
    """What is in the files of a cell's run; empty where they are not there yet, or hold something else."""

    start: Mapping[str, Any]
    end: Mapping[str, Any]
    measured: Mapping[str, Any]
    environment: Mapping[str, Any]


def files(run: Path) -> Files:
    return Files(
        start=_json(run / START, schema.START),
        end=_json(run / END, schema.END),
        measured=_json(run / MEASURED, schema.MEASURED),
        environment=_json(run / "environment.json", schema.ENVIRONMENT),
    )


def cell(plan: ComparisonPlan, folder: Path, planned: PlannedCell, found: Files) -> Cell:
    """What is known of a cell, but for what it has otherwise than others."""
    run = folder / CELLS / planned.name
    now, fault = status.read(run)
    done = now == "done"  # an evaluation that was broken off may be of an earlier try
    places = (
        {place: each for place, (_, each) in elsewhere(plan, planned, found).items()}
        if done
        else {}
    )
    trained = _numbers(
        found.end.get("metrics", {})
    )  # there when training was, whatever became of the evaluation
    measured = {TRAINED: trained} if trained else {}
    told = {place: _numbers(each) for place, each in places.items() if "refused" not in each}
    lying = {TRAINED: found.measured if done else {}, **places}
    return Cell(
        seed=planned.seed,
        run=f"{CELLS}/{planned.name}",
        state=now,
        fault=fault,
        metrics=measured | told,
        refused={
            place: str(each["refused"]) for place, each in places.items() if "refused" in each
        },
        positions={
            place: tuple(each["positions"])
            for place, each in lying.items()
            if each.get("positions")
        },
        curve=_curve(run, found.start.get("monitor", "")),
        parameters=found.start.get("parameters"),
        interpreters=tuple(found.start.get("backends", ())),
        steps=found.end.get("steps"),
        minutes=found.end.get("minutes"),
        step_seconds=found.end.get("step_seconds"),
        memory=found.end.get("memory"),
    )


def elsewhere(
    plan: ComparisonPlan, planned: PlannedCell, found: Files
) -> dict[str, tuple[Kind, Mapping[str, Any]]]:
    """{place: (what kind it is of, what was measured there)}, but for what the model was trained at, measured alike.

    A size by a rule is called "256 by yarn"; a variant by its name, where no size has it.
    """
    known = _trained(plan, planned, found)
    places: dict[str, tuple[Kind, Mapping[str, Any]]] = {}
    for kind in SIZES:
        places |= {
            size: (kind, one) for size, one in found.measured.get(kind, {}).items() if size != known
        }
    for name, one in found.measured.get("variants", {}).items():
        places[name if name and name not in places else f"variant {name}"] = "variants", one
    for rule, sizes in found.measured.get("rules", {}).items():
        if rule != extrapolation.NONE:
            places |= {f"{size}{BY}{rule}": ("rules", one) for size, one in sizes.items()}
    return places


def _trained(plan: ComparisonPlan, planned: PlannedCell, found: Files) -> str | None:
    """The size that is no other place than TRAINED: None where windows slide, or where each variant has one of its own."""
    if not plan.training_size or planned.recipe.get("evaluate", {}).get("stride") is not None:
        return None
    return str(found.measured.get("trained", found.measured.get("size")))


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}


def _curve(run: Path, monitor: str) -> tuple[tuple[int, float], ...]:
    """(step, what is monitored) of each validation."""
    try:
        _, rows = loggers.read(run / "metrics.csv")
        found = [(int(row["step"]), float(row[monitor])) for row in rows if row.get(monitor)]
    except (OSError, ValueError, KeyError):
        return ()
    return tuple((step, value) for step, value in found if math.isfinite(value))


def _json(path: Path, shape: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if fits(found, shape) else {}
