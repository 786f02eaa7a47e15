"""The record of a cell: what was planned, what it began with, what it reached and cost.

Records of finished cells are lines of one file (`record_file`) that outlives their machines.
Results are always built from records, so that a comparison gives the same numbers whether its run
directories are still there or not.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import fsum
from typing import Any

from zoo.comparison.digests import format_json, hash_plain, seal
from zoo.comparison.plan import ComparisonPlan, PlannedCell, list_changes
from zoo.comparison.results import CellMeasurement, RecordedHypothesis, TrainedCell
from zoo.launch.executor import State
from zoo.options.plain import to_plain
from zoo.reporting.numbers import finite

FORMAT = 2
MAX_VALIDATIONS = 24
"""Points of a learning curve that a record keeps."""
MAX_POSITIONS = 32
"""Losses by position that a record keeps one by one; more of them are averaged over bins."""
DRAWN_DIGITS = 6
"""Significant digits of curves and of losses by position, more than a chart shows."""
METRIC_DIGITS = 9
"""Significant digits of metrics in some records of format 1; they tell float32 numbers apart."""
SHORT_DIGITS = 8
"""Hexadecimal digits of a digest that only serves to find what differs."""
STATE_FIELDS = ("state", "error", "is_refused")
"""Fields that the file does not have: it is of a cell that is done."""
DIGESTS = ("plan", "hypotheses", "initial_weights", "first_losses")
"""Fields that are null where they are not known: records of format 1 had none of them."""
BLOCK_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A number between the points of the name of a weight."""
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
class CellRecord(TrainedCell):
    """A cell or trial, as far as it has come. What is not known of it yet is empty or None.

    Attributes:
        name: Its name in the comparison.
        variant: The name of its variant.
        study: The number of its study, if the comparison has studies.
        trial: The number of the trial in the study.
        settings: {key: value} in which its recipe differs from that of the plan.
        recipe: SHA-256 of all settings of its recipe.
        plan: SHA-256 of the plan as it was when the cell was trained, as `hash_plan` computes it;
            None if it is not known.
        hypotheses: SHA-256 of each hypothesis that was written by then; None if not known.
        start: SHA-256 of the digests of weights, sample order and first batch.
        initial_weights: SHA-256 of the digests of all initial weights; None if not known.
        first_losses: The losses of the first batches, None where one was not finite; None if they
            are not known.
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
        curve: (step, monitored metric) of at most 24 validations, evenly spaced.
        device: The device.
        planned_steps: Training steps of the recipe.
        processor_minutes: Minutes in which cores worked for it, all cores together.
        memory: Peak bytes.
        format: The version of this format.
        state: How far it has come.
        is_refused: Whether it has a file that is damaged, or was changed by hand.
    """

    name: str
    variant: str
    study: int | None = None
    trial: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    plan: str | None = None
    hypotheses: tuple[str, ...] | None = None
    start: str = ""
    initial_weights: str | None = None
    first_losses: tuple[float | None, ...] | None = None
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
    device: str | None = None
    planned_steps: int | None = None
    processor_minutes: float | None = None
    memory: int | None = None
    format: int = FORMAT
    state: State = "done"
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
        """Return plain data for JSON with its SHA-256; what is empty is left out."""
        plain = finite(to_plain(self))
        written = _drop_empty({k: v for k, v in plain.items() if k not in STATE_FIELDS})
        # null says "not known", an empty list "none"
        entries = {
            k: plain[k] if k in DIGESTS else written[k]
            # a line begins with what it is of
            for k in dict.fromkeys(("name", "variant", *plain))
            if k in written or k in DIGESTS
        }
        return seal(entries)


def hash_recipe(plan: ComparisonPlan, planned: PlannedCell) -> str:
    """Return the SHA-256 of all settings of a cell that change its results."""
    return hash_plain(plan.list_settings(planned))


def hash_plan(plan: ComparisonPlan) -> str:
    """Return the SHA-256 of what a plan says of all cells, also of those that are added to it."""
    design = plan.design
    return hash_plain(
        to_plain(
            {
                "base": plan.base,
                "measure": plan.measure,
                "better": plan.better,
                "axes": [axis.key for axis in plan.axes],
                "budget": design and design.budget,
                "keys": design and design.keys,
                "is_raced": design and design.is_raced,
            }
        )
    )


def hash_hypotheses(hypotheses: Iterable[RecordedHypothesis]) -> tuple[str, ...]:
    """Return the SHA-256 of the text of each hypothesis and of the time at which it was written."""
    return tuple(hash_plain([hypothesis.text, hypothesis.written]) for hypothesis in hypotheses)


def _drop_empty(value: Any) -> Any:
    """Drop entries of mappings that are None or empty, at every level but that of settings."""
    if isinstance(value, list):
        return [_drop_empty(entry) if isinstance(entry, dict | list) else entry for entry in value]
    if not isinstance(value, Mapping):
        return value
    entries = {
        key: _drop_empty(entry) if isinstance(entry, dict | list) and key != "settings" else entry
        for key, entry in value.items()
        # a metric that is no number stays, as null
        if entry is not None or "/" in key
    }
    return {key: entry for key, entry in entries.items() if entry not in ("", [], {})}


def round_drawn(cell: CellRecord) -> CellRecord:
    """Round what is only drawn: the curve, and losses by position."""
    measured = tuple(
        replace(
            measurement,
            position_losses=tuple(
                loss if loss is None else round_digits(loss, DRAWN_DIGITS)
                for loss in measurement.position_losses
            ),
        )
        for measurement in cell.measured
    )
    curve = tuple((step, round_digits(value, DRAWN_DIGITS)) for step, value in cell.curve)
    return replace(cell, measured=measured, curve=curve)


def round_digits(value: float, digits: int) -> float:
    """Return a number with so many significant digits."""
    return float(f"{value:.{digits}g}")


def group_weights(weights: Mapping[str, Sequence[int | str]]) -> dict[str, WeightGroup]:
    """Group weights that have the same name in all blocks: blocks.*.attention.qkv.weight.

    Args:
        weights: {name: its shape, and the digest of its values}.
    """
    members: dict[str, list[str]] = {}
    for name, digests in weights.items():
        if digests:
            pattern = BLOCK_NUMBER.sub("*", name)
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
        module, _, leaf = name.rpartition(".")
        members.setdefault(module if leaf in ("weight", "bias") else name, []).append(name)
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
    # losses fall steeply at the first positions and hardly at the last, so bins double
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
        total = sum([weight for _, weight in pairs])
        means.append(fsum([loss * weight for loss, weight in pairs]) / total if total else None)
    return tuple(means), tuple(edges)


def thin_curve(
    curve: Sequence[tuple[int, float]], most: int = MAX_VALIDATIONS
) -> tuple[tuple[int, float], ...]:
    """Return at most so many evenly spaced points of a learning curve, both ends among them."""
    if len(curve) <= most:
        return tuple(curve)
    last_index = len(curve) - 1
    chosen = {round(number * last_index / (most - 1)) for number in range(most)}
    return tuple(curve[number] for number in sorted(chosen))


def list_setting_differences(
    plan: ComparisonPlan, planned: PlannedCell, found: CellRecord
) -> list[str]:
    """Return in which settings a record differs from a planned cell; none if equal."""
    if found.recipe == hash_recipe(plan, planned):
        return []
    planned_settings = list_changes(plan.base, planned.recipe)
    pairs = {
        key: (found.settings.get(key), planned_settings.get(key))
        for key in {**planned_settings, **found.settings}
    }
    return [
        f"{key} is {format_json(there)} there, {format_json(here)} in the plan"
        for key, (there, here) in pairs.items()
        if there != here
        # equal settings with another digest are relative to another base
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
    digest = hash_plan(plan) if cell.plan == hash_plan(own) else cell.plan
    return replace(cell, recipe=hash_recipe(plan, planned), settings=settings, plan=digest)


@dataclass(frozen=True)
class UnequalValue:
    """A value in which two records of a cell differ.

    Attributes:
        field: The field of the records that holds it.
        text: The value in both, for people.
    """

    field: str
    text: str

    def __str__(self) -> str:
        return self.text


def list_unequal(one: CellRecord, other: CellRecord) -> list[UnequalValue]:
    """List where two records of a cell differ, apart from time, memory and machine."""
    one, other = _reduce(one, other), _reduce(other, one)
    plain, other_plain = (finite(to_plain(cell)) for cell in (one, other))
    return [
        UnequalValue(name, f"{place} is {format_json(before)} and {format_json(after)}")
        for name in plain
        if name not in COSTS
        for place, before, after in _compare(name, plain[name], other_plain[name])
    ]


def _reduce(cell: CellRecord, counterpart: CellRecord) -> CellRecord:
    """Return a record without what another one of the cell does not have.

    Records of format 1 were shortened to a size: they lack validations, losses by position, or
    digits. Baselines of conditions came later, as did the digests of format 2.
    """
    cell = round_drawn(cell)
    has_baselines = any(entry.baselines for entry in counterpart.measured)
    theirs = {entry.condition.name: entry for entry in counterpart.measured}
    measured = []
    for measurement in cell.measured:
        there = theirs.get(measurement.condition.name)
        if there is not None and measurement.position_edges != there.position_edges:
            measurement = replace(measurement, position_losses=(), position_edges=())
        if there is not None and not there.position_losses:
            measurement = replace(measurement, position_losses=(), position_edges=())
        if not has_baselines:
            measurement = replace(measurement, baselines={})
        measured.append(measurement)
    steps = {step for step, _ in counterpart.curve}
    changes: dict[str, Any] = {
        "measured": tuple(measured),
        "curve": tuple(point for point in cell.curve if point[0] in steps),
        "weights": group_by_module(cell.weights),
        **{name: None for name in DIGESTS if getattr(counterpart, name) is None},
    }
    if cell.plan is None or counterpart.plan is None:
        changes["test"] = _round_metrics(cell.test)
        changes["measured"] = tuple(
            replace(entry, metrics=_round_metrics(entry.metrics)) for entry in measured
        )
    return replace(cell, **changes)


def _round_metrics(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        key: value if value is None else round_digits(value, METRIC_DIGITS)
        for key, value in metrics.items()
    }


def _compare(place: str, left: Any, right: Any) -> list[tuple[str, Any, Any]]:
    if left == right:
        return []
    if isinstance(left, dict) and isinstance(right, dict):
        keys = dict.fromkeys([*left, *right])
        differences = []
        for key in keys:
            differences += _compare(f"{place} {key}", left.get(key), right.get(key))
        return differences
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        differences = []
        for number, (before, after) in enumerate(zip(left, right, strict=True)):
            differences += _compare(f"{place}[{number}]", before, after)
        return differences
    return [(place, left, right)]
