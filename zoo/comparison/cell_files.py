"""The files of a cell's run: its start, its results and its cost."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Any, TypeVar

from zoo.comparison.plan import CELLS, ComparisonPlan, PlannedCell
from zoo.comparison.results import CellMeasurement, ComparisonCell, StepsToSolve
from zoo.comparison.solving import find_steps_to_solve
from zoo.errors import DataError
from zoo.evaluation.results import ConditionResult
from zoo.launch.executor import State
from zoo.options.stored import build_stored, read_stored
from zoo.reporting.numbers import finite
from zoo.run import loggers
from zoo.run.callbacks.manifest import END, START
from zoo.run.conditions import Condition
from zoo.utils import read_object

T = TypeVar("T")

# what `zoo eval` measured for the comparison; its own file is overwritten by the next `zoo eval`
MEASURED = "measured.json"
# the validation metric of a trial
TRIAL = "trial.json"

UNTESTED = "untested"
"""A file in the run directory of a trial that validation has not chosen, at least not yet."""
ENVIRONMENT = "environment.json"
DAMAGED = "not as zoo writes it"

SHORT_DIGITS = 8
"""Hexadecimal digits of a digest that only serves to find what differs."""
MAX_POSITIONS = 32
"""Losses by position that a cell keeps one by one; more of them are binned."""
MAX_VALIDATIONS = 24
"""Points of a learning curve that a cell keeps."""
ACCURACY = "val/accuracy"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The environment of a run, as environment.json and end.json record it."""

    zoo: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None
    processes: int | None = None
    devices: Mapping[str, Any] = field(default_factory=dict)


WeightGroup = tuple[int, str, str]
"""The number of weights, and the first digits of the digests of their shapes and values."""


def group_weights(weights: Mapping[str, Sequence[int | str]]) -> dict[str, WeightGroup]:
    """Group weights that have the same name in all blocks: blocks.*.attention.qkv.weight.

    Args:
        weights: {name: its shape, and the digest of its values}.
    """
    members: dict[str, list[str]] = {}
    for name, digests in weights.items():
        if digests:
            pattern = ".".join("*" if part.isdecimal() else part for part in name.split("."))
            members.setdefault(pattern, []).append(name)
    return {
        pattern: (
            len(names),
            _shorten([[name, *weights[name][:-1]] for name in names]),
            _shorten([weights[name][-1] for name in names]),
        )
        for pattern, names in members.items()
    }


def group_by_module(groups: Mapping[str, WeightGroup]) -> dict[str, WeightGroup]:
    """Join the groups of a module, as blocks.*.attn.q_proj.weight and .bias; others stay."""
    members: dict[str, list[str]] = {}
    for name in groups:
        module, _, last = name.rpartition(".")
        members.setdefault(module if last in ("weight", "bias") else name, []).append(name)
    return {
        module: groups[names[0]]
        if len(names) == 1
        else (
            sum(groups[name][0] for name in names),
            _shorten([[name, *groups[name][:2]] for name in names]),
            _shorten([groups[name][2] for name in names]),
        )
        for module, names in members.items()
    }


def _shorten(parts: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:SHORT_DIGITS]


@dataclass(frozen=True, kw_only=True)
class StartFile:
    """The part of start.json that a comparison reads."""

    parameters: int | None = None
    weights: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    """{name: its shape, and the digest of its initial values}."""
    groups: Mapping[str, WeightGroup] = field(default_factory=dict)
    """Digests by group of weights; a portable cell has these in place of `weights`."""
    backends: tuple[str, ...] = ()
    monitor: str = ""
    order: str | None = None
    batch: str = ""
    device: str | None = None
    planned_steps: int | None = None
    flops: int | None = None

    @property
    def weight_groups(self) -> Mapping[str, WeightGroup]:
        """Weights of modules that have the same name in all blocks, as groups."""
        return group_by_module(self.groups or group_weights(self.weights))


@dataclass(frozen=True, kw_only=True)
class EndFile:
    """The part of end.json that a comparison reads."""

    metrics: Mapping[str, float | None] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, float] | float] = field(default_factory=dict)
    steps: int | None = None
    minutes: float | None = None
    processor_minutes: float | None = None
    step_seconds: float | None = None
    memory: int | None = None
    device: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrialFile:
    """The best validation metric of a trial, None if it became non-finite, and its minutes."""

    monitor: str = ""
    mode: str = ""
    best: float | None = None
    minutes: float | None = None
    processor_minutes: float | None = None


@dataclass(frozen=True, kw_only=True)
class CellFiles:
    """The files of a cell's run; defaults where they do not exist yet.

    Attributes:
        start: The digests at its start.
        end: Its results and cost.
        measured: What was measured under each condition.
        trained_size: The training size.
        environment: The environment of the first attempt.
        last_environment: That of the last attempt.
        curve: (step, monitored metric) of validations, thinned.
        accuracies: (step, accuracy) of all validations; empty in a portable cell.
        steps_to_solve: When the task was solved, in a portable cell.
    """

    start: StartFile = StartFile()
    end: EndFile = EndFile()
    measured: tuple[CellMeasurement, ...] = ()
    trained_size: tuple[int, ...] | None = None
    environment: Environment = Environment()
    last_environment: Environment = Environment()
    curve: tuple[tuple[int, float], ...] = ()
    accuracies: tuple[tuple[int, float], ...] = ()
    steps_to_solve: StepsToSolve | None = None

    @classmethod
    def read(cls, run: Path) -> CellFiles:
        """Read the files of a run directory. Raises DataError if one of them is damaged."""
        start, end = _read_known(StartFile, run / START), _read_known(EndFile, run / END)
        measured, trained_size = _read_measured(run / MEASURED)
        return cls(
            start=start,
            end=end,
            measured=measured,
            trained_size=trained_size,
            environment=_read_known(Environment, run / ENVIRONMENT),
            last_environment=build_stored(
                Environment, end.environment, run / END, DAMAGED, takes_more=True
            ),
            curve=thin_curve(read_curve(run, start.monitor)),
            accuracies=read_curve(run, ACCURACY),
        )


def read_end(path: Path) -> EndFile:
    """Read end.json. Raises DataError if it is damaged."""
    return _read_known(EndFile, path)


@dataclass(frozen=True)
class CellRecord:
    """A cell with the name of its variant and its files."""

    variant: str
    cell: ComparisonCell
    files: CellFiles


def require_finished(run: Path, planned: PlannedCell) -> None:
    """Raise DataError where the run of a cell that is done lacks a file of its results."""
    evaluated = planned.recipe.get("evaluate", {})
    is_evaluated = any(evaluated.get(key) for key in ("resolutions", "lengths", "data_variants"))
    is_tested = planned.trial is None or not os.path.lexists(run / UNTESTED)
    needed = {
        START: True,
        TRIAL: planned.trial is not None,
        END: is_tested,
        MEASURED: is_tested and is_evaluated,
    }
    for name, is_needed in needed.items():
        if is_needed and not os.path.lexists(run / name):
            raise DataError(f"{run / name}: there is no such file, though the cell is done")


def _read_known(cls: type[T], path: Path) -> T:
    """Read the entries of a file that a dataclass knows; defaults if there is no such file."""
    if not os.path.lexists(path):
        return cls()
    return read_stored(cls, path, DAMAGED, takes_more=True)


def _read_measured(path: Path) -> tuple[tuple[CellMeasurement, ...], tuple[int, ...] | None]:
    if not os.path.lexists(path):
        return (), None
    found = read_object(path, DAMAGED)
    try:
        measured = tuple(ConditionResult.from_dict(one) for one in found["conditions"])
        size = tuple(int(side) for side in found["trained_size"])
        return tuple(map(_build_measurement, measured)), size
    except KeyError as error:
        raise DataError(f"{DAMAGED}, it has no key {error.args[0]}", place=path) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{DAMAGED}, {error}", place=path) from None


def _build_measurement(one: ConditionResult) -> CellMeasurement:
    losses, edges = bin_positions(one.position_losses, one.position_counts)
    return CellMeasurement(
        condition=one.condition,
        metrics=finite(dict(one.metrics)),
        refused=one.refused,
        position_losses=losses,
        position_edges=edges,
        baselines=one.baselines,
    )


def bin_positions(
    losses: Sequence[float | None], counts: Sequence[int] = (), most: int = MAX_POSITIONS
) -> tuple[tuple[float | None, ...], tuple[int, ...]]:
    """Average losses by position over bins that begin at powers of two.

    Args:
        losses: The mean loss at each position, None where no token is a target.
        counts: The number of targets at each position; equal ones if empty.
        most: How many positions are few.

    Returns:
        The mean of each bin, and the first position of each bin with the end of the last one. Few
        positions are returned unchanged, without edges.
    """
    if len(losses) <= most:
        return tuple(losses), ()
    edges = [0, 1]
    while edges[-1] < len(losses):
        edges.append(min(2 * edges[-1], len(losses)))
    weights = counts if len(counts) == len(losses) else [1] * len(losses)
    means: list[float | None] = []
    for low, high in pairwise(edges):
        pairs = [
            (loss, weight)
            for loss, weight in zip(losses[low:high], weights[low:high], strict=True)
            if loss is not None and weight
        ]
        total = sum(weight for _, weight in pairs)
        means.append(fsum(loss * weight for loss, weight in pairs) / total if total else None)
    return tuple(means), tuple(edges)


def thin_curve(
    curve: Sequence[tuple[int, float]], most: int = MAX_VALIDATIONS
) -> tuple[tuple[int, float], ...]:
    """Return at most so many evenly spaced points of a learning curve, both ends among them."""
    if len(curve) <= most:
        return tuple(curve)
    last = len(curve) - 1
    chosen = {round(number * last / (most - 1)) for number in range(most)}
    return tuple(curve[number] for number in sorted(chosen))


LOW_IS_BETTER = ("loss", "mae", "rmse")


def build_cell(
    plan: ComparisonPlan,
    planned: PlannedCell,
    files: CellFiles,
    state: State,
    error: str = "",
    target: float | None = None,
) -> ComparisonCell:
    """Build a cell from its files, without how it differs from others.

    Args:
        plan: The plan.
        planned: The cell in the plan.
        files: Its files.
        state: How far it has come.
        error: Why it failed, in a line.
        target: Value of the monitored metric; `steps_to_solve` is the first step that reaches it.
    """
    steps_to_solve = files.steps_to_solve
    if target is not None:
        is_low = files.start.monitor.rpartition("/")[2] in LOW_IS_BETTER
        steps_to_solve = find_steps_to_solve(files.curve, target, "low" if is_low else "high")
    return ComparisonCell(
        seed=planned.seed,
        run_dir=f"{CELLS}/{planned.name}",
        state=state,
        error=error,
        # an evaluation that was interrupted may be of an earlier attempt
        measurements=tuple(_list_measurements(plan, planned, files, is_done=state == "done")),
        curve=files.curve,
        steps_to_solve=steps_to_solve,
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
            position_edges=first.position_edges if first else (),
        )
    if is_done:
        yield from list_further(plan, planned, files)


def list_further(
    plan: ComparisonPlan, planned: PlannedCell, files: CellFiles
) -> Iterable[CellMeasurement]:
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
    """Return the metric of a trial; None if it has not ended. Raises DataError if it is damaged."""
    path = run / TRIAL
    if not os.path.lexists(path):
        return None
    return read_stored(TrialFile, path, DAMAGED, takes_more=True)


def read_curve(run: Path, metric: str) -> tuple[tuple[int, float], ...]:
    """Return (step, metric) of each validation that gave a finite number.

    Raises:
        DataError: The file of metrics is damaged.
    """
    path = run / "metrics.csv"
    if not os.path.lexists(path):
        return ()
    _, rows = loggers.read(path)
    found = [(int(row["step"]), float(row[metric])) for row in rows if row.get(metric)]
    return tuple((step, value) for step, value in found if math.isfinite(value))
