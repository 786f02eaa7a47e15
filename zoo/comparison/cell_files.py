"""The files of a cell's run: what it began with, what it reached, what it cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from zoo.comparison.grid import Combination, find_setting
from zoo.comparison.plan import CELLS, TRIALS, ComparisonPlan, PlannedCell
from zoo.comparison.results import Better, CellMeasurement, ComparisonCell, TrialResult
from zoo.evaluation.results import ConditionResult
from zoo.launch.executor import read_state
from zoo.options.signature import fields
from zoo.options.validation import read_data
from zoo.run import loggers
from zoo.run.callbacks.manifest import END, START
from zoo.run.conditions import Condition

T = TypeVar("T")

# what `zoo eval` measured for the comparison; its own file is overwritten by the next `zoo eval`
MEASURED = "measured.json"
# the validation metric of a trial
TRIAL = "trial.json"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The environment of a run, as environment.json and end.json record it."""

    zoo: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None
    processes: int | None = None
    devices: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StartFile:
    """The part of start.json that a comparison reads."""

    parameters: int | None = None
    weights: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    """{name: its shape, and the digest of its initial values}."""
    backends: tuple[str, ...] = ()
    monitor: str = ""
    order: str | None = None
    batch: str = ""
    device: str | None = None
    planned_steps: int | None = None
    flops: int | None = None


@dataclass(frozen=True, kw_only=True)
class EndFile:
    """The part of end.json that a comparison reads."""

    metrics: Mapping[str, float | None] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, float] | float] = field(default_factory=dict)
    steps: int | None = None
    minutes: float | None = None
    step_seconds: float | None = None
    memory: int | None = None
    device: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrialFile:
    """The best validation metric of a trial; None if it became non-finite."""

    monitor: str = ""
    mode: str = ""
    best: float | None = None


@dataclass(frozen=True, kw_only=True)
class CellFiles:
    """The files of a cell's run; defaults where they do not exist yet, or hold something else.

    Attributes:
        start: What it began with.
        end: What it reached and cost.
        measured: What was measured under each condition.
        trained_size: The training size.
        environment: The environment of the first attempt.
        last_environment: That of the last attempt.
    """

    start: StartFile = StartFile()
    end: EndFile = EndFile()
    measured: tuple[ConditionResult, ...] = ()
    trained_size: tuple[int, ...] | None = None
    environment: Environment = Environment()
    last_environment: Environment = Environment()

    @classmethod
    def read(cls, run: Path) -> CellFiles:
        """Read the files of a run directory."""
        end = _read_known(EndFile, _read_json(run / END))
        measured, trained_size = _read_measured(_read_json(run / MEASURED))
        return cls(
            start=_read_known(StartFile, _read_json(run / START)),
            end=end,
            measured=measured,
            trained_size=trained_size,
            environment=_read_known(Environment, _read_json(run / "environment.json")),
            last_environment=_read_known(Environment, end.environment),
        )


@dataclass(frozen=True)
class CellRecord:
    """A cell with the name of its variant and its files."""

    variant: str
    cell: ComparisonCell
    files: CellFiles


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _read_known(cls: type[T], found: Any) -> T:
    """Build a dataclass of the entries that it knows; of defaults if one of them does not fit."""
    if not isinstance(found, Mapping):
        return cls()
    try:
        return read_data(cls, {key: found[key] for key in fields(cls) if key in found})
    except ValueError:
        return cls()


def _read_measured(found: Any) -> tuple[tuple[ConditionResult, ...], tuple[int, ...] | None]:
    try:
        measured = tuple(ConditionResult.from_dict(one) for one in found["conditions"])
        return measured, tuple(int(side) for side in found["trained_size"])
    except (KeyError, ValueError, TypeError, AttributeError):
        return (), None


def build_cell(
    plan: ComparisonPlan, folder: Path, planned: PlannedCell, files: CellFiles
) -> ComparisonCell:
    """Build a cell from its files, without how it differs from others."""
    run = folder / CELLS / planned.name
    state, error = read_state(run)
    return ComparisonCell(
        seed=planned.seed,
        run_dir=f"{CELLS}/{planned.name}",
        state=state,
        error=error,
        # an evaluation that was interrupted may be of an earlier attempt
        measurements=tuple(_list_measurements(plan, planned, files, is_done=state == "done")),
        curve=_read_curve(run, files.start.monitor),
        parameters=files.start.parameters,
        flops=files.start.flops,
        backends=files.start.backends,
        steps=files.end.steps,
        minutes=files.end.minutes,
        step_seconds=files.end.step_seconds,
        peak_memory=files.end.memory,
        baselines=_read_baselines(planned, files),
    )


def _list_measurements(
    plan: ComparisonPlan, planned: PlannedCell, files: CellFiles, *, is_done: bool
) -> Iterable[CellMeasurement]:
    """Yield the test at the end of training, and what was measured under further conditions."""
    first = files.measured[0] if is_done and files.measured else None
    # these are there when training is, whatever became of the evaluation
    if files.end.metrics or first:
        yield CellMeasurement(
            condition=plan.trained,
            metrics=files.end.metrics,
            refused=first.refused if first else "",
            position_losses=first.position_losses if first else (),
        )
    for one in list_further(plan, planned, files) if is_done else ():
        yield CellMeasurement(
            condition=one.condition,
            metrics=one.metrics,
            refused=one.refused,
            position_losses=one.position_losses,
        )


def list_further(
    plan: ComparisonPlan, planned: PlannedCell, files: CellFiles
) -> Iterable[ConditionResult]:
    """Yield what was measured under conditions other than the test data of the recipe.

    The training size among the sizes is left out where it was measured in the same way. That is not
    so if windows slide, or if variants were trained at different sizes.
    """
    slides = planned.recipe.get("evaluate", {}).get("stride") is not None
    skipped = None if plan.trained.size is None or slides else files.trained_size
    for one in files.measured:
        condition = one.condition
        if condition.kind == "trained" or (condition.kind == "size" and condition.size == skipped):
            continue
        yield one


def _read_baselines(planned: PlannedCell, files: CellFiles) -> dict[str, Mapping[str, float]]:
    """Return the baselines by metric; none of models that fill masks, whose loss is another."""
    if planned.recipe.get("task", {}).get("name") == "masked_lm":
        return {}
    found = files.end.baselines
    return {metric: own for metric, own in found.items() if isinstance(own, Mapping)}


def collect_conditions(
    plan: ComparisonPlan, files: Iterable[tuple[PlannedCell, CellFiles]]
) -> tuple[Condition, ...]:
    """Return the conditions of all cells that are done, each once, the trained one first."""
    found = {plan.trained.name: plan.trained}
    for planned, own in files:
        for one in list_further(plan, planned, own):
            found.setdefault(one.condition.name, one.condition)
    return tuple(found.values())


def read_trial(run: Path) -> TrialFile | None:
    """Return the metric of a trial; None if it has not ended."""
    found = _read_json(run / TRIAL)
    return _read_known(TrialFile, found) if isinstance(found, Mapping) else None


def read_trials(
    combinations: Iterable[Combination], plan: ComparisonPlan, folder: Path, keys: Sequence[str]
) -> tuple[dict[str, list[TrialResult]], str, Better]:
    """Return what the trials reached, their metric, and whether high values of it are better.

    Args:
        combinations: The trials.
        plan: Their plan; all of them are done.
        folder: The folder of the trials.
        keys: The tuned keys.

    Returns:
        {variant: its trials, in order}, the metric, and the direction.
    """
    monitor, better = "", "high"
    found: dict[str, list[TrialResult]] = {}
    for combination, cell in zip(combinations, plan.cells, strict=True):
        assert combination.trial_of is not None
        ended = read_trial(folder / TRIALS / cell.name) or TrialFile()
        if ended.best is not None:
            monitor, better = ended.monitor, "high" if ended.mode == "max" else "low"
        settings = {key: find_setting(cell.recipe, key) for key in keys}
        result = TrialResult(settings=settings, value=ended.best)
        found.setdefault(combination.trial_of, []).append(result)
    return found, monitor, "high" if better == "high" else "low"


def _read_curve(run: Path, monitor: str) -> tuple[tuple[int, float], ...]:
    """Return (step, monitored metric) of each validation."""
    try:
        _, rows = loggers.read(run / "metrics.csv")
        found = [(int(row["step"]), float(row[monitor])) for row in rows if row.get(monitor)]
    except (OSError, ValueError, KeyError):
        return ()
    return tuple((step, value) for step, value in found if math.isfinite(value))
