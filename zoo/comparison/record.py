"""The record of a cell: what was planned, what it began with, what it reached and cost.

A finished cell or trial is one small file `cells/NAME.json` that outlives its machine, with its own
SHA-256. Results are always built from records, so that a comparison gives the same numbers whether
its run directories are still there or not.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Any

from zoo.comparison.plan import CELLS, ComparisonPlan, PlannedCell, list_changes
from zoo.comparison.results import CellMeasurement, StepsToSolve
from zoo.errors import DataError
from zoo.launch.executor import State
from zoo.options.plain import to_plain
from zoo.options.stored import build_stored
from zoo.reporting.numbers import finite
from zoo.utils import read_json, write_file

FORMAT = 1
HASH = "sha256"
PROBLEM = "holds no finished cell"
SIZE = 3000
"""Target size of a file in bytes. Metrics are kept even if they exceed it."""
MACHINE_SIZE = 600
"""Bytes of these for what differs from machine to machine: versions, processor, times."""
FEWEST_VALIDATIONS, MAX_VALIDATIONS, POINT_SIZE = 6, 24, 17
FEW_POSITIONS, MAX_POSITIONS = 8, 32
METRIC_DIGITS, DRAWN_DIGITS = 9, 6
"""Significant digits: nine tell all numbers of 32 bits apart, six are more than a chart shows."""
SHORT_DIGITS = 8
"""Hexadecimal digits of a digest that only serves to find what differs."""
EDITED = "its content does not fit its SHA-256: it was changed by hand or damaged"
STATE_FIELDS = ("state", "error", "is_refused")
"""Fields that the file does not have: it is of a cell that is done."""
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

WeightGroup = tuple[int, str, str]
"""The number of weights, and the first digits of the digests of their shapes and values."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The environment of a run, as environment.json and end.json record it."""

    zoo: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None
    processes: int | None = None
    devices: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """A cell or trial, as far as it has come. What is not known of it yet is empty or None.

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
        state: How far it has come.
        error: Why it failed, in a line.
        is_refused: Whether it has a file that is damaged, or was changed by hand.
    """

    name: str
    variant: str
    seed: int
    study: int | None = None
    trial: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    start: str = ""
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
    state: State = "done"
    error: str = ""
    is_refused: bool = False

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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON with its SHA-256; what is empty or unknown is left out."""
        plain = to_plain(self)
        plain = _drop_empty(finite({k: v for k, v in plain.items() if k not in STATE_FIELDS}))
        return {**plain, HASH: hash_plain(plain)}

    def write(self, path: Path) -> None:
        """Write the file, a key on each line."""
        plain = self.to_dict()
        lines = ",\n".join(f"{json.dumps(key)}: {_format(value)}" for key, value in plain.items())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(io.BytesIO(f"{{\n{lines}\n}}\n".encode()), path)


def read_portable(path: Path) -> CellRecord:
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
    return build_stored(CellRecord, plain, path, PROBLEM)


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


def compact(cell: CellRecord) -> CellRecord:
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


def _measure_size(cell: CellRecord) -> int:
    """Return how many bytes a cell takes, with a constant for what the machine adds."""
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


def _round_numbers(cell: CellRecord) -> CellRecord:
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


def _drop_middle_positions(cell: CellRecord) -> CellRecord:
    """Keep the losses by position of the first and the last condition, mostly the longest."""
    return _keep_positions(cell, {0, len(cell.measured) - 1})


def _drop_first_positions(cell: CellRecord) -> CellRecord:
    """Keep the losses by position of the last condition only."""
    return _keep_positions(cell, {len(cell.measured) - 1})


def _keep_positions(cell: CellRecord, kept: Collection[int]) -> CellRecord:
    measured = [
        one if number in kept else replace(one, position_losses=(), position_edges=())
        for number, one in enumerate(cell.measured)
    ]
    return replace(cell, measured=tuple(measured))


def _bin_short_windows(cell: CellRecord) -> CellRecord:
    """Bin those windows by powers of two that are otherwise kept for each position."""
    measured = []
    for one in cell.measured:
        if not one.position_edges:
            losses, edges = bin_positions(one.position_losses, most=FEW_POSITIONS)
            one = replace(one, position_losses=losses, position_edges=edges)
        measured.append(one)
    return _round_numbers(replace(cell, measured=tuple(measured)))


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


def list_portable(folder: Path) -> list[Path]:
    """Return the portable files of an output folder."""
    return sorted(folder.glob(f"{CELLS}/*.json"))


def list_setting_differences(
    plan: ComparisonPlan, planned: PlannedCell, found: CellRecord
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
    cell: CellRecord,
    own: ComparisonPlan,
    its_planned: PlannedCell,
    plan: ComparisonPlan,
    planned: PlannedCell,
) -> CellRecord:
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
    """A value in which two records of a cell differ.

    Attributes:
        field: The field of the records that holds it.
        text: The value in both, for people.
    """

    field: str
    text: str

    def __str__(self) -> str:
        return self.text


def list_unequal(one: CellRecord, other: CellRecord) -> list[Difference]:
    """List where two records of a cell differ, apart from time, memory and machine."""
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


def _has_baselines(cell: CellRecord) -> bool:
    """Return whether some condition of a cell has baselines of its own."""
    return any(one.baselines for one in cell.measured)


def _drop_baselines(cell: CellRecord) -> CellRecord:
    """Return a cell whose conditions have no baselines."""
    return replace(cell, measured=tuple(replace(one, baselines={}) for one in cell.measured))


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
