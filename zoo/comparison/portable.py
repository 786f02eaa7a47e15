"""Portable cells: one small file for each finished cell or trial, which outlives its machine.

The file `cells/NAME.json` holds the settings of a cell, digests of what it began with, what it
reached and cost, and its own SHA-256. Results are always built from these values, so that a
comparison gives the same numbers whether its run directories are still there or not.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from zoo.comparison.cell_files import (
    MAX_VALIDATIONS,
    SHORT_DIGITS,
    CellFiles,
    EndFile,
    Environment,
    StartFile,
    TrialFile,
    WeightGroup,
    bin_positions,
    group_by_module,
    read_curve,
    read_end,
    read_trial,
    require_finished,
    thin_curve,
)
from zoo.comparison.plan import CELLS, ComparisonPlan, PlannedCell, list_changes
from zoo.comparison.results import Better, CellMeasurement, StepsToSolve
from zoo.comparison.solving import find_steps_to_solve
from zoo.errors import DataError
from zoo.launch.executor import State, read_state
from zoo.options.plain import to_plain
from zoo.options.stored import build_stored
from zoo.reporting.numbers import finite
from zoo.run.callbacks.manifest import END
from zoo.run.conditions import TRAINED
from zoo.utils import read_json, write_file

log = logging.getLogger("zoo")

FORMAT = 1
HASH = "sha256"
PROBLEM = "holds no finished cell"
SIZE = 3000
"""Target size of a file in bytes. Metrics are kept even if they exceed it."""
MACHINE_SIZE = 600
"""Bytes of these for what differs from machine to machine: versions, processor, times."""
FEWEST_VALIDATIONS, POINT_SIZE = 6, 17
FEW_POSITIONS = 8
METRIC_DIGITS, DRAWN_DIGITS = 9, 6
"""Significant digits: nine tell all numbers of 32 bits apart, six are more than a chart shows."""
REMEDY = "restore it, or delete the folder of the cell to train it again"
EDITED = "its content does not fit its SHA-256: it was changed by hand or damaged"


@dataclass(frozen=True, kw_only=True)
class PortableCell:
    """A finished cell or trial.

    Attributes:
        name: Its name in the comparison.
        variant: The name of its variant.
        seed: Its seed.
        study: The number of its study, if the comparison has studies.
        trial: The number of the trial in the study.
        settings: {key: value} in which its recipe differs from that of the plan.
        recipe: SHA-256 of all settings of its recipe.
        start: SHA-256 of the digests of weights, sample order and first batch.
        weights: Digests of weights that have the same name in all blocks.
        order: The first digits of the digest of the sample order; None for a stream.
        batch: Those of the first batch.
        environment: Versions, commit and machine of the first attempt.
        continued: Those of the last attempt, if they differ.
        monitor: The validation metric that chooses the checkpoint.
        value: The best value of a trial's criterion; None if it became non-finite, and of cells.
        criterion: The validation metric by which a trial is judged; empty for cells.
        mode: Whether high values of it are better ("max") or low ones ("min").
        test: Metrics on the test data of the recipe at the end of training.
        measured: What was measured under each condition.
        trained_size: The training size.
        curve: (step, monitored metric) of validations, thinned.
        steps_to_solve: When the task was solved, if it is one that can be.
        baselines: {metric: {baseline: value}}.
        parameters: Number of parameters.
        flops: Operations of a forward pass of one sample.
        backends: What computes attention.
        device: The device.
        planned_steps: Training steps of the recipe.
        steps: Training steps that were done.
        minutes: Minutes of training.
        processor_minutes: Minutes in which cores worked for it, all cores together.
        step_seconds: Median seconds of a step.
        memory: Peak bytes.
        format: The version of this format.
    """

    name: str
    variant: str
    seed: int
    study: int | None = None
    trial: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: str
    start: str
    weights: Mapping[str, WeightGroup] = field(default_factory=dict)
    order: str | None = None
    batch: str = ""
    environment: Environment = field(default_factory=Environment)
    continued: tuple[Environment, ...] = ()
    monitor: str = ""
    value: float | None = None
    criterion: str = ""
    mode: str = ""
    test: Mapping[str, float | None] = field(default_factory=dict)
    measured: tuple[CellMeasurement, ...] = ()
    trained_size: tuple[int, ...] | None = None
    curve: tuple[tuple[int, float], ...] = ()
    steps_to_solve: StepsToSolve | None = None
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    parameters: int | None = None
    flops: int | None = None
    backends: tuple[str, ...] = ()
    device: str | None = None
    planned_steps: int | None = None
    steps: int | None = None
    minutes: float | None = None
    processor_minutes: float | None = None
    step_seconds: float | None = None
    memory: int | None = None
    format: int = FORMAT

    @property
    def is_tested(self) -> bool:
        """True if test samples were read; trials read none."""
        return bool(self.test or self.measured)

    @property
    def last_environment(self) -> Environment:
        """Versions, commit and machine of the last attempt."""
        return self.continued[-1] if self.continued else self.environment

    @property
    def machine(self) -> str:
        """The processor or the GPUs that trained it, as text; empty if unknown."""
        devices = self.last_environment.devices
        return ", ".join(devices.get("cuda") or ()) or str(devices.get("processor", ""))

    def to_files(self) -> CellFiles:
        """Return the cell as its run directory would have it."""
        start = StartFile(
            parameters=self.parameters,
            groups=self.weights,
            backends=self.backends,
            monitor=self.monitor,
            order=self.order,
            batch=self.batch,
            device=self.device,
            planned_steps=self.planned_steps,
            flops=self.flops,
        )
        end = EndFile(
            metrics=self.test,
            baselines=self.baselines,
            steps=self.steps,
            minutes=self.minutes,
            processor_minutes=self.processor_minutes,
            step_seconds=self.step_seconds,
            memory=self.memory,
            device=self.device if self.steps is not None else None,
        )
        return CellFiles(
            start=start,
            end=end,
            measured=self.measured,
            trained_size=self.trained_size,
            environment=self.environment,
            last_environment=self.last_environment,
            curve=self.curve,
            steps_to_solve=self.steps_to_solve,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON with its SHA-256; what is empty or unknown is left out."""
        plain = _drop_empty(finite(to_plain(self)))
        return {**plain, HASH: hash_plain(plain)}

    def write(self, path: Path) -> None:
        """Write the file, a key on each line."""
        plain = self.to_dict()
        lines = ",\n".join(f"{json.dumps(key)}: {_format(value)}" for key, value in plain.items())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(io.BytesIO(f"{{\n{lines}\n}}\n".encode()), path)


def read_portable(path: Path) -> PortableCell:
    """Return the cell of a file.

    Raises:
        DataError: The file holds something else, or its content does not fit its SHA-256.
    """
    plain = read_json(path, PROBLEM)
    if not isinstance(plain, dict) or HASH not in plain:
        raise DataError(f"{PROBLEM}", place=path)
    given = plain.pop(HASH)
    if given != _hash_or_none(plain):
        raise DataError(f"{EDITED}; restore it, or delete it to train the cell again", place=path)
    if plain.get("format") != FORMAT:
        raise DataError(
            f"written by another version of zoo, format {plain.get('format')}", place=path
        )
    return build_stored(PortableCell, plain, path, PROBLEM)


def _hash_or_none(plain: Any) -> str | None:
    try:
        return hash_plain(plain)
    except ValueError:
        # a number that is none, which zoo never writes
        return None


def locate_portable(folder: Path, name: str) -> Path:
    """Return where the file of a cell is in an output folder."""
    return folder / CELLS / f"{name}.json"


def hash_plain(plain: Any) -> str:
    """Return the SHA-256 of plain data as canonical JSON: sorted keys, no spaces, UTF-8."""
    return hashlib.sha256(_format(plain, is_sorted=True).encode()).hexdigest()


def hash_recipe(plan: ComparisonPlan, planned: PlannedCell) -> str:
    """Return the SHA-256 of all settings of a cell that change its results."""
    return hash_plain(plan.list_settings(planned))


def _format(value: Any, *, is_sorted: bool = False) -> str:
    return json.dumps(
        value, sort_keys=is_sorted, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def _drop_empty(value: Any) -> Any:
    """Drop entries of mappings that are None or empty, at every level but that of settings."""
    if isinstance(value, list):
        return [_drop_empty(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    kept = {
        key: one if key == "settings" else _drop_empty(one)
        for key, one in value.items()
        # a metric that is no number stays, as null
        if one is not None or "/" in key
    }
    return {key: one for key, one in kept.items() if one not in ("", [], {})}


def build_portable(plan: ComparisonPlan, folder: Path, planned: PlannedCell) -> PortableCell:
    """Build a portable cell from the run directory of a cell that is done.

    Raises:
        DataError: A file of its results is missing or damaged.
    """
    run = folder / CELLS / planned.name
    require_finished(run, planned)
    found = CellFiles.read(run)
    start, end = found.start, found.end
    trial = read_trial(run)
    # a tested trial has those of its test too
    spent = trial if trial and end.minutes is None else end
    if trial is not None and planned.trial is not None:
        trial = _judge_by(f"val/{plan.measure.removeprefix('test/')}", plan.better, trial, run)
    first, last = found.environment, found.last_environment
    is_continued = bool(end.environment) and last != first
    cell = PortableCell(
        name=planned.name,
        variant=planned.variant,
        seed=planned.seed,
        study=planned.study,
        trial=planned.trial,
        settings=list_changes(plan.base, planned.recipe),
        recipe=hash_recipe(plan, planned),
        start=hash_start(start),
        weights=start.weight_groups,
        order=start.order and start.order[:SHORT_DIGITS],
        batch=start.batch[:SHORT_DIGITS],
        environment=first,
        continued=(last,) if is_continued else (),
        monitor=start.monitor,
        value=trial.best if trial else None,
        criterion=trial.monitor if trial else "",
        mode=trial.mode if trial else "",
        test=end.metrics,
        measured=tuple(_drop_repeated(one, plan.measure) for one in found.measured),
        trained_size=found.trained_size,
        curve=found.curve,
        steps_to_solve=find_steps_to_solve(found.accuracies) if plan.has_answers else None,
        baselines={key: one for key, one in end.baselines.items() if isinstance(one, Mapping)},
        parameters=start.parameters,
        flops=start.flops,
        backends=start.backends,
        device=end.device or start.device,
        planned_steps=start.planned_steps,
        steps=end.steps,
        minutes=spent.minutes,
        processor_minutes=spent.processor_minutes,
        step_seconds=end.step_seconds,
        memory=end.memory,
    )
    return compact(cell)


def compact(cell: PortableCell) -> PortableCell:
    """Shorten a cell step by step until its file has the size of a portable one.

    A small cell keeps all numbers, and a compact one stays unchanged. What differs from machine to
    machine is counted as a constant, so that all machines keep the same.
    """
    # of all cells, so that those of one comparison have the same groups
    cell = replace(cell, weights=group_by_module(cell.weights))
    steps = (_round_numbers, _drop_middle_positions, _bin_short_windows, _drop_first_positions)
    for shorten in steps:
        if _measure_size(cell) <= SIZE:
            return cell
        cell = shorten(cell)
    left = (SIZE - _measure_size(replace(cell, curve=()))) // POINT_SIZE
    points = min(max(left, FEWEST_VALIDATIONS), MAX_VALIDATIONS)
    return replace(cell, curve=thin_curve(cell.curve, points))


def _measure_size(cell: PortableCell) -> int:
    """Return how many bytes a cell takes, with a constant for what the machine adds.

    Baselines of conditions do not count, so that a cell keeps the same numbers as one that was
    recorded before cells had them.
    """
    blank = replace(
        _drop_baselines(cell),
        environment=Environment(),
        continued=(),
        minutes=None,
        processor_minutes=None,
        step_seconds=None,
        memory=None,
    )
    return MACHINE_SIZE + len(_format(blank.to_dict()))


def _round_numbers(cell: PortableCell) -> PortableCell:
    measured = [
        replace(
            one,
            metrics=_round_metrics(one.metrics),
            baselines={
                metric: {name: _round(value, METRIC_DIGITS) for name, value in values.items()}
                for metric, values in one.baselines.items()
            },
            position_losses=tuple(
                loss if loss is None else _round(loss, DRAWN_DIGITS) for loss in one.position_losses
            ),
        )
        for one in cell.measured
    ]
    return replace(
        cell,
        test=_round_metrics(cell.test),
        measured=tuple(measured),
        curve=tuple((step, _round(value, DRAWN_DIGITS)) for step, value in cell.curve),
    )


def _round_metrics(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        key: value if value is None else _round(value, METRIC_DIGITS)
        for key, value in metrics.items()
    }


def _round(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _drop_middle_positions(cell: PortableCell) -> PortableCell:
    """Keep the losses by position of the first and the last condition, mostly the longest."""
    return _keep_positions(cell, {0, len(cell.measured) - 1})


def _drop_first_positions(cell: PortableCell) -> PortableCell:
    """Keep the losses by position of the last condition only."""
    return _keep_positions(cell, {len(cell.measured) - 1})


def _keep_positions(cell: PortableCell, kept: Collection[int]) -> PortableCell:
    measured = [
        one if number in kept else replace(one, position_losses=(), position_edges=())
        for number, one in enumerate(cell.measured)
    ]
    return replace(cell, measured=tuple(measured))


def _bin_short_windows(cell: PortableCell) -> PortableCell:
    """Bin those windows by powers of two that are otherwise kept for each position."""
    measured = []
    for one in cell.measured:
        if not one.position_edges:
            losses, edges = bin_positions(one.position_losses, most=FEW_POSITIONS)
            one = replace(one, position_losses=losses, position_edges=edges)
        measured.append(one)
    return _round_numbers(replace(cell, measured=tuple(measured)))


def _judge_by(criterion: str, better: Better, trial: TrialFile, run: Path) -> TrialFile:
    """Judge a trial by the metric that is compared, at the validation that its checkpoint is of."""
    monitored = read_curve(run, trial.monitor)
    if trial.best is None or trial.monitor == criterion or not monitored:
        return trial
    sign = 1 if trial.mode == "max" else -1
    step, _ = max(monitored, key=lambda pair: sign * pair[1])
    value = dict(read_curve(run, criterion)).get(step)
    if value is None:
        return trial
    mode = "max" if better == "high" else "min"
    return replace(trial, monitor=criterion, mode=mode, best=value)


def hash_start(start: StartFile) -> str:
    """Return one SHA-256 of the digests of all weights, of the sample order and first batch."""
    weights = {name: [*digests] for name, digests in start.weights.items()}
    return hash_plain({"weights": weights, "order": start.order, "batch": start.batch})


def _drop_repeated(one: CellMeasurement, measure: str) -> CellMeasurement:
    """Drop what the test at the end of training has too, and baselines of other metrics.

    Args:
        one: What was measured under a condition.
        measure: The compared metric.
    """
    if one.condition.kind == TRAINED:
        return replace(one, metrics={}, baselines={})
    kept = {metric: values for metric, values in one.baselines.items() if metric == measure}
    return replace(one, baselines=kept)


@dataclass(frozen=True)
class FoundCell:
    """The state of a cell in an output folder.

    Attributes:
        state: How far it has come.
        error: Why it failed, in a line.
        files: Its files; those of its portable file if it is done.
        portable: Its portable content, if it is done.
    """

    state: State
    error: str
    files: CellFiles
    portable: PortableCell | None = None
    is_refused: bool = False
    """Whether it has a file that is damaged, or was changed by hand."""


def find_cell(plan: ComparisonPlan, folder: Path, planned: PlannedCell) -> FoundCell:
    """Return what an output folder has of a cell, from its portable file or its run directory."""
    path = locate_portable(folder, planned.name)
    if os.path.lexists(path):
        try:
            portable = read_portable(path)
        except DataError as error:
            reason = f"{path.name}: {error.problem}"
            return FoundCell("failed", reason, CellFiles(), is_refused=True)
        return FoundCell("done", "", portable.to_files(), portable)
    run = folder / CELLS / planned.name
    try:
        state, error_text = read_state(run)
        if state == "done":
            portable = build_portable(plan, folder, planned)
            return FoundCell("done", "", portable.to_files(), portable)
        return FoundCell(state, error_text, CellFiles.read(run))
    except DataError as error:
        reason = f"{error.problem}; {REMEDY}"
        if error.place:
            reason = f"{os.path.relpath(error.place, folder / CELLS)}: {reason}"
        return FoundCell("failed", reason, CellFiles(), is_refused=True)


def is_done(plan: ComparisonPlan, folder: Path, planned: PlannedCell) -> bool:
    """Return whether a cell needs no more training, here or on the machine that trained it.

    A cell whose results are damaged is not done: its process says what is wrong with them.
    """
    if os.path.lexists(locate_portable(folder, planned.name)):
        return True
    run = folder / CELLS / planned.name
    try:
        if read_state(run)[0] != "done":
            return False
        require_finished(run, planned)
        CellFiles.read(run)
    except DataError:
        return False
    return True


def keep_finished(
    plan: ComparisonPlan, folder: Path, planned: PlannedCell, *, keeps_weights: bool
) -> None:
    """Write the portable file of a cell that is done, and delete its weights unless kept."""
    run = folder / CELLS / planned.name
    path = locate_portable(folder, planned.name)
    if not os.path.lexists(path):
        if not is_done(plan, folder, planned):
            return
        build_portable(plan, folder, planned).write(path)
    elif read_state(run)[0] != "done":
        return
    else:
        set_aside_damaged_end(run)
    if not keeps_weights:
        shutil.rmtree(run / "checkpoints", ignore_errors=True)


def set_aside_damaged_end(run: Path) -> None:
    """Rename a damaged end.json of a cell whose portable file has the results, and say so."""
    end = run / END
    try:
        read_end(end)
    except DataError as error:
        aside = end.with_name(f"{END}.damaged")
        os.replace(end, aside)
        log.warning("%s; renamed to %s, since %s.json has the results", error, aside.name, run.name)


def list_portable(folder: Path) -> list[Path]:
    """Return the portable files of an output folder."""
    return sorted(folder.glob(f"{CELLS}/*.json"))


def check_portable(plan: ComparisonPlan, folder: Path) -> None:
    """Check all portable cells of a plan.

    Raises:
        DataError: Some were changed, or are of another recipe; all of them are named.
    """
    problems = []
    for planned in plan.cells:
        path = locate_portable(folder, planned.name)
        if not os.path.lexists(path):
            continue
        try:
            found = read_portable(path)
        except DataError as error:
            problems.append(str(error))
            continue
        differences = list_setting_differences(plan, planned, found)
        if differences:
            problems.append(f"{path}: of another recipe: {'; '.join(differences)}")
    if problems:
        raise DataError("\n".join(problems))


def list_setting_differences(
    plan: ComparisonPlan, planned: PlannedCell, found: PortableCell
) -> list[str]:
    """Return in which settings a portable cell differs from a planned one; none if equal."""
    if found.recipe == hash_recipe(plan, planned):
        return []
    own = list_changes(plan.base, planned.recipe)
    keys = [key for key in {**own, **found.settings} if own.get(key) != found.settings.get(key)]
    return [
        f"{key} is {_format(found.settings.get(key))} there, {_format(own.get(key))} in the plan"
        for key in keys
    ] or ["its base recipe differs"]


def adopt(
    cell: PortableCell,
    own: ComparisonPlan,
    its_planned: PlannedCell,
    plan: ComparisonPlan,
    planned: PlannedCell,
) -> PortableCell:
    """Return a cell of one plan as that of another, if both plans ask for the same results.

    The plans differ where zoo has gained options between them, or in what changes no result.
    """
    is_own = cell.recipe == hash_recipe(own, its_planned)
    if not is_own or not plan.agrees(planned, own, its_planned):
        return cell
    settings = list_changes(plan.base, planned.recipe)
    return replace(cell, recipe=hash_recipe(plan, planned), settings=settings)


@dataclass(frozen=True)
class Difference:
    """A value in which two portable cells differ.

    Attributes:
        field: The field of the cells that holds it.
        text: The value in both, for people.
    """

    field: str
    text: str

    def __str__(self) -> str:
        return self.text


def list_unequal(one: PortableCell, other: PortableCell) -> list[Difference]:
    """List where two portable cells differ, apart from time, memory and machine."""
    names = [each.name for each in fields(one) if each.name not in COSTS]
    # one of them may have been written before conditions had baselines, or cells were shortened
    if not (_has_baselines(one) and _has_baselines(other)):
        one, other = _drop_baselines(one), _drop_baselines(other)
    one, other = compact(one), compact(other)
    plain, others = (finite(to_plain(cell)) for cell in (one, other))
    return [
        Difference(name, f"{place} is {_format(before)} and {_format(after)}")
        for name in names
        for place, before, after in _compare(name, plain[name], others[name])
    ]


def _has_baselines(cell: PortableCell) -> bool:
    """Return whether some condition of a cell has baselines of its own."""
    return any(one.baselines for one in cell.measured)


def _drop_baselines(cell: PortableCell) -> PortableCell:
    """Return a cell whose conditions have no baselines."""
    return replace(cell, measured=tuple(replace(one, baselines={}) for one in cell.measured))


COSTS = (
    "environment",
    "continued",
    "minutes",
    "processor_minutes",
    "step_seconds",
    "memory",
    "format",
)
"""Fields that differ from run to run on the same machine, or with the machine."""


def _compare(place: str, one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    if one == other:
        return []
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys([*one, *other])
        found = []
        for key in keys:
            found += _compare(f"{place} {key}", one.get(key), other.get(key))
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        found = []
        for number, (before, after) in enumerate(zip(one, other, strict=True)):
            found += _compare(f"{place}[{number}]", before, after)
        return found
    return [(place, one, other)]
