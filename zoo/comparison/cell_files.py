"""Read the files of a cell's run: what it was measured under, what it cost, what it began with."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.comparison.grid import Combination, find_setting, list_combinations
from zoo.comparison.plan import CELLS, TRIALS, ComparisonPlan, PlannedCell, name_cells, plan_trials
from zoo.comparison.request import CompareRequest, ParsedRequest, list_trials, load_variant
from zoo.comparison.results import ANY_KEY, TRAINED, ComparisonCell, ConditionKind, has_shape
from zoo.comparison.tuning import Trial, describe_length, summarize_tuning
from zoo.config import Recipe
from zoo.errors import ZooError
from zoo.launch.executor import Resources, read_state
from zoo.run import loggers
from zoo.run.callbacks.manifest import END, START

# what `zoo eval` measured for the comparison; its own file is overwritten by the next `zoo eval`
MEASURED = "measured.json"
# what a trial came to on validation data
TRIAL = "trial.json"

NUMBER = (int, float)
NOTHING = type(None)
CONDITION_SHAPE = {
    "name": str,
    "kind": str,
    "size": ([int], NOTHING),
    "extrapolation": (str, NOTHING),
    "data_variant": (str, NOTHING),
    "metrics": {},
    "refused": str,
    "position_losses": [(*NUMBER, NOTHING)],
}
ENVIRONMENT_SHAPE = {
    "zoo": str,
    "packages": {ANY_KEY: str},
    "git": ({"commit": str, "changed": bool}, NOTHING),
    "processes": int,
    "devices": {"cuda": [str], "threads": int},
}
START_SHAPE = {
    "parameters": int,
    "weights": {ANY_KEY: [(int, str)]},
    "backends": [str],
    "monitor": str,
    "order": (str, NOTHING),
    "batch": str,
    "device": str,
    "planned_steps": int,
    "flops": (int, NOTHING),
}
END_SHAPE = {
    "metrics": {},
    "baselines": {ANY_KEY: ({ANY_KEY: NUMBER}, NUMBER)},
    "steps": int,
    "minutes": NUMBER,
    "step_seconds": (*NUMBER, NOTHING),
    "memory": NUMBER,
    "device": str,
    "environment": ENVIRONMENT_SHAPE,
}
TRIAL_SHAPE = {"monitor": str, "mode": str, "best": (*NUMBER, NOTHING)}
MEASURED_SHAPE = {"conditions": [CONDITION_SHAPE], "trained_size": [int]}


@dataclass(frozen=True)
class CellFiles:
    """The files of a cell's run; empty if they are not there yet, or hold something else."""

    start: Mapping[str, Any]
    end: Mapping[str, Any]
    measured: Mapping[str, Any]
    environment: Mapping[str, Any]

    @classmethod
    def read(cls, run: Path) -> CellFiles:
        """Read the files of a run directory."""
        return cls(
            start=_read_json(run / START, START_SHAPE),
            end=_read_json(run / END, END_SHAPE),
            measured=_read_json(run / MEASURED, MEASURED_SHAPE),
            environment=_read_json(run / "environment.json", ENVIRONMENT_SHAPE),
        )


@dataclass(frozen=True)
class CellRecord:
    """A cell with the name of its variant and its files."""

    variant: str
    cell: ComparisonCell
    files: CellFiles


def build_cell(
    plan: ComparisonPlan, folder: Path, planned: PlannedCell, files: CellFiles
) -> ComparisonCell:
    """Return what is known of a cell, except how it differs from others."""
    run = folder / CELLS / planned.name
    state, error = read_state(run)
    # an evaluation that was interrupted may be of an earlier attempt
    is_done = state == "done"
    conditions: dict[str, Mapping[str, Any]] = {}
    if is_done:
        conditions[TRAINED] = next(iter(files.measured.get("conditions", ())), {})
        found = list_conditions(plan, planned, files)
        conditions |= {name: measured for name, (_, measured) in found.items()}

    metrics, refused, losses = {}, {}, {}
    # these are there when training is, whatever became of the evaluation
    trained = _keep_numbers(files.end.get("metrics", {}))
    if trained:
        metrics[TRAINED] = trained
    for name, measured in conditions.items():
        if "refused" in measured:
            refused[name] = str(measured["refused"])
        elif name != TRAINED:
            metrics[name] = _keep_numbers(measured["metrics"])
        if measured.get("position_losses"):
            losses[name] = tuple(measured["position_losses"])

    return ComparisonCell(
        seed=planned.seed,
        run_dir=f"{CELLS}/{planned.name}",
        state=state,
        error=error,
        metrics=metrics,
        refused=refused,
        position_losses=losses,
        curve=_read_curve(run, files.start.get("monitor", "")),
        parameters=files.start.get("parameters"),
        flops=files.start.get("flops"),
        backends=tuple(files.start.get("backends", ())),
        steps=files.end.get("steps"),
        minutes=files.end.get("minutes"),
        step_seconds=files.end.get("step_seconds"),
        peak_memory=files.end.get("memory"),
        baselines=_read_baselines(planned, files),
    )


def _read_baselines(planned: PlannedCell, files: CellFiles) -> dict[str, dict[str, float]]:
    """Return the baselines by metric; none of models that fill masks, whose loss is another."""
    if planned.recipe.get("task", {}).get("name") == "masked_lm":
        return {}
    found = files.end.get("baselines", {})
    return {metric: own for metric, own in found.items() if isinstance(own, dict)}


def list_conditions(
    plan: ComparisonPlan, planned: PlannedCell, files: CellFiles
) -> dict[str, tuple[ConditionKind, Mapping[str, Any]]]:
    """Return {condition: (its kind, what was measured under it)} of all conditions but TRAINED.

    A size with an extrapolation method is called "256 by yarn". A data variant has its own name,
    unless a size is called so.
    """
    training_size = _find_training_size(plan, planned, files)
    found: dict[str, tuple[ConditionKind, Mapping[str, Any]]] = {}
    for measured in files.measured.get("conditions", ()):
        name, kind, size = measured["name"], measured["kind"], measured["size"]
        if kind == "size" and size != training_size:
            found[name] = "lengths" if len(size) == 1 else "resolutions", measured
        elif kind == "data_variant":
            found[name] = "data_variants", measured
        elif kind == "extrapolation":
            found[name] = "extrapolation", measured
    return found


def _find_training_size(
    plan: ComparisonPlan, planned: PlannedCell, files: CellFiles
) -> list[int] | None:
    """Return the size that was measured in the same way as TRAINED, if there is one.

    There is none if windows slide, or if variants were trained at different sizes.
    """
    if not plan.training_size or planned.recipe.get("evaluate", {}).get("stride") is not None:
        return None
    size: list[int] | None = files.measured.get("trained_size")
    return size


def _keep_numbers(found: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}


def read_trial(run: Path) -> dict[str, Any]:
    """Return {monitor, mode, best} of a trial, empty if it has not ended."""
    return _read_json(run / TRIAL, TRIAL_SHAPE)


def read_trial_values(
    trials: Iterable[Combination], cells: Sequence[str], folder: Path
) -> tuple[dict[str, dict[tuple[int, int], float | None]], str, str]:
    """Return what the trials that have ended came to, their metric, and whether high is better.

    Args:
        trials: The trials.
        cells: The name of the cell of each.
        folder: The folder of the trials.

    Returns:
        {variant: {(number, rung): value, None if it became non-finite}}, the metric, high or low.
    """
    monitor, better = "", "high"
    values: dict[str, dict[tuple[int, int], float | None]] = {}
    for combination, cell in zip(trials, cells, strict=True):
        assert combination.trial
        assert combination.trial_of
        run = folder / TRIALS / cell
        found = read_trial(run) if read_state(run)[0] == "done" else None
        if not found:
            continue
        trial = combination.trial
        values.setdefault(combination.trial_of, {})[trial.number, trial.rung] = found["best"]
        if found["best"] is not None:
            monitor, better = found["monitor"], "high" if found["mode"] == "max" else "low"
    return values, monitor, better


def list_known_trials(
    parsed: ParsedRequest, resources: Resources, folder: Path
) -> tuple[dict[Combination, Recipe], ComparisonPlan]:
    """Return the trials that are known from those that have ended, and their plan.

    Further trials are not checked as the first ones are: they differ in values of the same ranges.

    Args:
        parsed: What was compared and tuned.
        resources: What the trials run on.
        folder: The folder of the trials.
    """
    request, is_local = parsed.request, parsed.executor.is_local
    assert request.tuning is not None
    recipes = dict(parsed.trials)
    while True:
        cells = name_cells([one.name for one in recipes], [request.tuning.seed])
        values, _, better = read_trial_values(recipes, cells, folder)
        listed = list_trials(request, parsed.recipes, values, better)
        names = {one.name for one in recipes}
        added = [one for one in listed if one.name not in names]
        if not added:
            return recipes, plan_trials(request, recipes, resources, is_local=is_local)
        recipes |= {one: load_variant(request, one) for one in added}


def collect_tuning(
    request: CompareRequest,
    recipes: Mapping[Combination, Recipe],
    plan: ComparisonPlan,
    folder: Path,
) -> tuple[dict[str, Any], dict[str, Trial]]:
    """Return what the trials found, and {variant: its best trial}.

    Args:
        request: What was compared and tuned.
        recipes: The recipe of each trial.
        plan: The plan of the trials, all of which are done.
        folder: The folder of the trials.

    Raises:
        ZooError: All trials of a variant became non-finite.
    """
    tuning = request.tuning
    assert tuning is not None
    cells = [cell.name for cell in plan.cells]
    values, monitor, better = read_trial_values(recipes, cells, folder)
    found: dict[str, dict[int, dict[str, Any]]] = {}
    trials: dict[str, dict[int, Trial]] = {}
    lengths: dict[int, dict[str, None]] = {}
    for combination, cell in zip(recipes, plan.cells, strict=True):
        trial, name = combination.trial, combination.trial_of
        assert trial
        assert name
        settings = {one.key: find_setting(cell.recipe, one.key) for one in tuning.keys}
        value = values[name][trial.number, trial.rung]
        # a trial that went on is judged by its longest training
        own = {"settings": settings, "value": value, "rung": trial.rung}
        found.setdefault(name, {})[trial.number] = own
        trials.setdefault(name, {})[trial.number] = trial
        lengths.setdefault(trial.rung, {})[describe_length(cell.recipe["trainer"])] = None

    listed = {name: [*own.values()] for name, own in found.items()}
    in_words = [" or ".join(lengths[rung]) for rung in sorted(lengths)]
    summary = summarize_tuning(tuning, monitor, better, listed, in_words)
    best: dict[str, Trial] = {}
    for variant in list_combinations(request.keys):
        number = summary["variants"][variant.name]["best"]
        if number is None:
            raise ZooError(f"{variant.name}: every trial became non-finite; tune other settings")
        best[variant.name] = trials[variant.name][number]
    return summary, best


def _read_curve(run: Path, monitor: str) -> tuple[tuple[int, float], ...]:
    """Return (step, monitored metric) of each validation."""
    try:
        _, rows = loggers.read(run / "metrics.csv")
        found = [(int(row["step"]), float(row[monitor])) for row in rows if row.get(monitor)]
    except (OSError, ValueError, KeyError):
        return ()
    return tuple((step, value) for step, value in found if math.isfinite(value))


def _read_json(path: Path, shape: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if has_shape(found, shape) else {}
