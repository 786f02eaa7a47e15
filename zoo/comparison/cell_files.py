"""The run directory of a cell: its files as one record, whether it is done, what is kept of it."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zoo.comparison.digests import hash_plain
from zoo.comparison.hypotheses import read_hypotheses
from zoo.comparison.plan import CELLS, ComparisonPlan, PlannedCell, list_changes
from zoo.comparison.record import (
    MAX_VALIDATIONS,
    SHORT_DIGITS,
    CellRecord,
    Environment,
    bin_positions,
    group_by_module,
    group_weights,
    hash_hypotheses,
    hash_plan,
    hash_recipe,
    round_drawn,
    thin_curve,
)
from zoo.comparison.record_file import append_cell, read_cells, read_checked
from zoo.comparison.results import Better, CellMeasurement
from zoo.comparison.solving import find_steps_to_solve
from zoo.errors import DataError, ZooError
from zoo.evaluation.results import ConditionResult
from zoo.launch.executor import State, read_state
from zoo.options.stored import build_stored, read_part
from zoo.reporting.numbers import finite
from zoo.run import loggers
from zoo.run.callbacks.manifest import END, START
from zoo.run.conditions import TRAINED
from zoo.utils import read_object

log = logging.getLogger("zoo")

MEASURED = "measured.json"
"""What `zoo eval` measured for the comparison; its own file is overwritten by the next one."""
TRIAL = "trial.json"
UNTESTED = "untested"
"""A file in the run directory of a trial that validation has not chosen, at least not yet."""
ENVIRONMENT = "environment.json"
DAMAGED = "not as zoo writes it"
REMEDY = "restore it, or delete the folder of the cell to train it again"
ACCURACY = "val/accuracy"

COSTS = ("minutes", "processor_minutes")
BEGUN = (
    "parameters",
    "backends",
    "monitor",
    "order",
    "batch",
    "device",
    "planned_steps",
    "flops",
    "first_losses",
)
ENDED = ("steps", *COSTS, "step_seconds", "memory", "device")
KEYS: Mapping[str, Mapping[str, str]] = {
    START: dict(zip(BEGUN, BEGUN, strict=True)),
    END: {**dict(zip(ENDED, ENDED, strict=True)), "metrics": "test"},
    TRIAL: {
        **dict(zip(COSTS, COSTS, strict=True)),
        "monitor": "criterion",
        "mode": "mode",
        "best": "value",
    },
}
"""{file of a run directory: {its key: the field of a record}}"""


def read_entries(run: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a record that a file of a run directory has, and its whole content.

    Both are empty if there is no such file.

    Raises:
        DataError: The file is damaged.
    """
    path = run / name
    if not os.path.lexists(path):
        return {}, {}
    plain = read_object(path, DAMAGED)
    return read_part(CellRecord, plain, path, DAMAGED, KEYS.get(name, {})), plain


def read_run(run: Path) -> CellRecord:
    """Read the files of a run directory. Raises DataError if one of them is damaged."""
    measured, trained_size = _read_measured(run / MEASURED)
    (begun, raw), (ended, end_extras) = read_entries(run, START), read_entries(run, END)
    judged, _ = read_entries(run, TRIAL)
    weights, order, batch = raw.get("weights", {}), begun.get("order"), begun.get("batch", "")
    first_environment = _build_environment(read_entries(run, ENVIRONMENT)[1], run / ENVIRONMENT)
    last_environment = _build_environment(end_extras.get("environment", {}), run / END)
    # a tested trial has the costs of its test too
    spent = judged if ended.get("minutes") is None else ended
    try:
        groups = group_by_module(group_weights(weights))
    except (AttributeError, TypeError) as error:
        raise DataError(f"{DAMAGED}: weights: {error}", place=run / START) from None
    entries = {
        **begun,
        **{key: value for key, value in ended.items() if value is not None},
        **judged,
        **{key: spent.get(key) for key in COSTS},
        "start": hash_plain({"weights": weights, "order": order, "batch": batch}),
        "initial_weights": hash_plain(weights) if weights else None,
        "weights": groups,
        "order": order and order[:SHORT_DIGITS],
        "batch": batch[:SHORT_DIGITS],
        "monitor": begun.get("monitor", ""),
    }
    return CellRecord(
        name=run.name,
        variant="",
        seed=0,
        environment=first_environment,
        continued=(last_environment,)
        if end_extras.get("environment") and last_environment != first_environment
        else (),
        measured=measured,
        trained_size=trained_size,
        curve=thin_curve(read_curve(run, entries["monitor"]), MAX_VALIDATIONS),
        baselines={
            k: v for k, v in end_extras.get("baselines", {}).items() if isinstance(v, Mapping)
        },
        **entries,
    )


def build_record(
    plan: ComparisonPlan, folder: Path, planned: PlannedCell, state: State = "done"
) -> CellRecord:
    """Build the record of a cell from its run directory.

    Raises:
        DataError: A file of its results is missing or damaged.
    """
    run = folder / CELLS / planned.name
    if state == "done":
        require_finished(run, planned)
    cell = replace(
        read_run(run),
        name=planned.name,
        variant=planned.variant,
        seed=planned.seed,
        study=planned.study,
        trial=planned.trial,
        state=state,
    )
    if state != "done":
        return cell
    # trials are chosen by the metric of the comparison, not by that of the recipe's checkpoints
    if planned.trial is not None and cell.criterion:
        cell = _judge_by(f"val/{plan.measure.removeprefix('test/')}", plan.better, cell, run)
    solved = find_steps_to_solve(read_curve(run, ACCURACY)) if plan.has_answers else None
    return round_drawn(
        replace(
            cell,
            plan=hash_plan(plan),
            hypotheses=hash_hypotheses(read_hypotheses(folder)),
            settings=list_changes(plan.base, planned.recipe),
            recipe=hash_recipe(plan, planned),
            measured=tuple(
                _drop_repeated(measurement, plan.measure) for measurement in cell.measured
            ),
            steps_to_solve=solved,
        )
    )


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
            raise DataError("there is no such file, though the cell is done", place=run / name)


def _build_environment(plain: Any, path: Path) -> Environment:
    return (
        build_stored(Environment, plain or {}, path, DAMAGED, takes_more=True)
        if plain
        else Environment()
    )


def _read_measured(path: Path) -> tuple[tuple[CellMeasurement, ...], tuple[int, ...] | None]:
    if not os.path.lexists(path):
        return (), None
    evaluation = read_object(path, DAMAGED)
    try:
        measured = tuple(ConditionResult.from_dict(entry) for entry in evaluation["conditions"])
        size = tuple(int(side) for side in evaluation["trained_size"])
        return tuple(map(_build_measurement, measured)), size
    except KeyError as error:
        raise DataError(f"{DAMAGED}, it has no key {error.args[0]}", place=path) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{DAMAGED}, {error}", place=path) from None


def _build_measurement(result: ConditionResult) -> CellMeasurement:
    losses, edges = bin_positions(result.position_losses, result.position_counts)
    return CellMeasurement(
        condition=result.condition,
        metrics=finite(dict(result.metrics)),
        refused=result.refused,
        position_losses=losses,
        position_edges=edges,
        baselines=result.baselines,
    )


def read_curve(run: Path, metric: str) -> tuple[tuple[int, float], ...]:
    """Return (step, metric) of each validation that gave a finite number.

    Raises:
        DataError: The file of metrics is damaged.
    """
    path = run / "metrics.csv"
    if not os.path.lexists(path):
        return ()
    _, rows = loggers.read(path)
    points = [(int(row["step"]), float(row[metric])) for row in rows if row.get(metric)]
    return tuple((step, value) for step, value in points if math.isfinite(value))


def _judge_by(criterion: str, better: Better, trial: CellRecord, run: Path) -> CellRecord:
    """Judge a trial by the metric that is compared, at the validation that its checkpoint is of."""
    monitored = read_curve(run, trial.criterion)
    if trial.value is None or trial.criterion == criterion or not monitored:
        return trial
    sign = 1 if trial.mode == "max" else -1
    step, _ = max(monitored, key=lambda pair: sign * pair[1])
    value = dict(read_curve(run, criterion)).get(step)
    if value is None:
        return trial
    mode = "max" if better == "high" else "min"
    return replace(trial, criterion=criterion, mode=mode, value=value)


def _drop_repeated(measurement: CellMeasurement, measure: str) -> CellMeasurement:
    """Drop what the test at the end of training has too, and baselines of other metrics.

    Args:
        measurement: What was measured under a condition.
        measure: The compared metric.
    """
    if measurement.condition.kind == TRAINED:
        return replace(measurement, metrics={}, baselines={})
    compared_baselines = {
        metric: values for metric, values in measurement.baselines.items() if metric == measure
    }
    return replace(measurement, baselines=compared_baselines)


def find_cell(
    plan: ComparisonPlan,
    folder: Path,
    planned: PlannedCell,
    cells: Mapping[str, CellRecord] | None = None,
) -> CellRecord:
    """Return what an output folder has of a cell, from the file of finished ones or from its run.

    Args:
        plan: The plan.
        folder: The output folder.
        planned: The cell.
        cells: The finished cells, as `read_checked` returns them; read if left out.
    """
    record = (read_checked(plan, folder) if cells is None else cells).get(planned.name)
    if record is not None and record.is_refused:
        return replace(record, variant=planned.variant, seed=planned.seed)
    if record is not None:
        return record
    try:
        state, error_text = read_state(folder / CELLS / planned.name)
        return replace(build_record(plan, folder, planned, state), error=error_text)
    except DataError as error:
        # a damaged cell is refused by itself, so that the results of the others can still be read
        reason = f"{error.problem}; {REMEDY}"
        if error.place:
            reason = f"{os.path.relpath(error.place, folder)}: {reason}"
        return CellRecord(
            name=planned.name,
            variant=planned.variant,
            seed=planned.seed,
            state="failed",
            error=reason,
            is_refused=True,
        )


def find_cells(plan: ComparisonPlan, folder: Path) -> dict[str, CellRecord]:
    """Return {name: record} of all cells of a plan, as `find_cell` does."""
    cells = read_checked(plan, folder)
    return {planned.name: find_cell(plan, folder, planned, cells) for planned in plan.cells}


def is_done(plan: ComparisonPlan, folder: Path, planned: PlannedCell) -> bool:
    """Return whether a cell needs no more training, here or on the machine that trained it.

    A cell whose results are damaged is not done: its process says what is wrong with them.
    """
    return planned.name in read_cells(folder) or _build_finished(plan, folder, planned) is not None


def _build_finished(plan: ComparisonPlan, folder: Path, planned: PlannedCell) -> CellRecord | None:
    """Build the record of a cell from its run directory; None if the cell is not done there."""
    try:
        if read_state(folder / CELLS / planned.name)[0] != "done":
            return None
        return build_record(plan, folder, planned)
    except DataError:
        return None


def keep_finished(
    plan: ComparisonPlan, folder: Path, planned: PlannedCell, *, keeps_weights: bool
) -> CellRecord | None:
    """Write the record of a cell that is done, and delete its weights unless kept.

    A record that cannot be written, as on a full disk, is named in the log.

    Returns:
        The record; None if the cell is not done.
    """
    run = folder / CELLS / planned.name
    written = read_cells(folder).get(planned.name)
    record = written or _build_finished(plan, folder, planned)
    if record is None:
        return None
    try:
        if written is None:
            append_cell(folder, record)
        elif read_state(run)[0] != "done":
            return record
        else:
            set_aside_damaged_end(run)
        if not keeps_weights:
            shutil.rmtree(run / "checkpoints", ignore_errors=True)
    except (ZooError, OSError) as error:
        log.info("%s: its record cannot be written: %s", planned.name, error)
    return record


def set_aside_damaged_end(run: Path) -> None:
    """Rename a damaged end.json of a cell whose record has the results, and say so."""
    end = run / END
    try:
        read_entries(run, END)
    except DataError as error:
        aside = end.with_name(f"{END}.damaged")
        os.replace(end, aside)
        message = "%s; renamed to %s, since the record of the cell has the results"
        log.warning(message, error, aside.name)
