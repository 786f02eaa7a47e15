"""Train one recorded cell again, drawn by chance, and compare what both runs measured."""

from __future__ import annotations

import hashlib
import logging
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import stdev
from typing import Literal

from zoo.comparison.cell import train_cell
from zoo.comparison.cell_files import UNTESTED, build_record, find_cell
from zoo.comparison.plan import CELLS, PLAN, RECIPES, ComparisonPlan, PlannedCell, write_plan
from zoo.comparison.record import CellRecord, group_by_module, list_unequal
from zoo.comparison.record_file import CELLS_FILE, check_cells
from zoo.config import from_plain
from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError
from zoo.launch.executor import make_run_dir
from zoo.reporting.numbers import pluralize
from zoo.run.build import build_data
from zoo.suggestions import join_words, nearest

log = logging.getLogger("zoo")

Verdict = Literal["equal", "equal up to rounding", "different"]

FIRST_TOLERANCE = 1e-5
"""How far the losses of the first batch may lie apart, relative to those above 1."""
EARLY_TOLERANCE = 1e-4
"""The same for the other first batches, whose weights have been rounded."""
SHARES = ("accuracy", "exact", "top5")
"""Metrics that are shares of samples or of their targets; one sample changes them a little."""
SPREAD = 3.0
"""Standard deviations of a difference of two runs that chance explains."""
MAX_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of checking a recorded comparison."""

    cell: str | None = None
    """Cell to train again; null draws one."""
    draw: str | None = None
    """Text that draws the cell, such as the number of a workflow run; null takes today's date."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The outcome of training a recorded cell again.

    Attributes:
        path: The file with the record of the cell.
        cell: Its name.
        draw: The text that drew it; empty if it was named.
        verdict: Whether both runs are equal.
        is_explained: Whether differing processors explain a difference: the runs began equally, as
            far as is known, and no result lies outside what chance explains.
        reasons: What the verdict rests on, and what is not known.
        differences: The fields that differ, with both values; empty if all digits are equal.
        machine: The processor or GPU that the file names.
        machine_here: That of this machine.
        metrics: The metrics on the test data of the recipe, as trained here.
    """

    path: Path
    cell: str
    draw: str
    verdict: Verdict
    is_explained: bool
    reasons: tuple[str, ...]
    differences: tuple[str, ...]
    machine: str
    machine_here: str
    metrics: dict[str, float | None]

    @property
    def is_equal(self) -> bool:
        """True if all digits are equal."""
        return self.verdict == "equal"

    def table(self) -> str:
        """Return the result as text."""
        drawn = f", drawn by {self.draw}" if self.draw else ""
        place = f"{self.path}, {self.cell}"
        if self.is_equal:
            return f"{place}: equal to the last digit{drawn}"
        machines = f"trained on {self.machine or 'an unknown processor'}, here on "
        lines = [f"{place}: {self.verdict}{drawn}", f"  {machines}{self.machine_here}"]
        lines += [f"  {reason}" for reason in self.reasons]
        count = len(self.differences)
        lines.append(f"  {pluralize(count, 'field')} not equal to the last digit:")
        lines += [f"    {difference}" for difference in self.differences[:MAX_SHOWN]]
        if count > MAX_SHOWN:
            lines.append(f"    and {count - MAX_SHOWN} more")
        return "\n".join(lines)


def check(folder: Path, options: CheckOptions) -> CheckResult:
    """Train a recorded cell again.

    Args:
        folder: The output folder of a comparison.
        options: The options.

    Raises:
        RecipeError: There is no cell of this name.
        DataError: The folder holds no finished cell, the named cell is not done, or a cell, the
            plan or the hypotheses were changed by hand.
    """
    plan = ComparisonPlan.read(folder)
    cells = check_cells(plan, folder)
    planned = {cell.name: cell for cell in plan.cells}
    if options.cell is not None and options.cell not in planned:
        message = f"there is no cell {options.cell!r}"
        raise RecipeError(ConfigIssue(ARGUMENT, "cell", message, nearest(options.cell, planned)))
    if options.cell is not None and options.cell not in cells:
        raise DataError(_describe_unfinished(plan, folder, planned[options.cell]))
    if not cells:
        raise DataError(f"{folder}: no cell is done yet, so none can be checked")
    draw = "" if options.cell else options.draw or f"{datetime.now(UTC):%Y-%m-%d}"
    name = options.cell or draw_cell([*cells], draw)

    log.info("%s: training %s again", folder, name)
    recorded = cells[name]
    # tested only if the recorded cell was: a trial must not read test samples
    retrained = _train_again(plan, planned[name], is_tested=recorded.is_tested)
    judgement = judge(plan, planned[name], cells, retrained)
    return replace(judgement, path=folder / CELLS_FILE, draw=draw)


def _describe_unfinished(plan: ComparisonPlan, folder: Path, planned: PlannedCell) -> str:
    """Return how far a cell has come that cannot be checked yet."""
    cell = find_cell(plan, folder, planned)
    place = f"{folder}: {planned.name}"
    if cell.state == "failed":
        return f"{place} failed and has no results: {cell.error}"
    how = {
        "waiting": "has not been trained yet",
        "running": "is being trained",
        "stopped": "was stopped before its end",
        "done": "is done, and its record is not written yet",
    }[cell.state]
    return f"{place} {how}; it can be checked when the command of the comparison has trained it"


def draw_cell(names: Sequence[str], draw: str) -> str:
    """Return the cell that a string draws.

    Whoever records cells must not know the string: it is later than the commit.
    """
    number = int(hashlib.sha256(draw.encode()).hexdigest(), 16)
    # sorted, so that the order of the plan cannot move the choice
    return sorted(names)[number % len(names)]


def judge(
    plan: ComparisonPlan, planned: PlannedCell, cells: Mapping[str, CellRecord], again: CellRecord
) -> CheckResult:
    """Judge whether a cell that was trained again is the recorded one.

    Args:
        plan: The plan.
        planned: The cell in the plan.
        cells: {name: finished cell}.
        again: The record of the second training.
    """
    recorded = cells[planned.name]
    # what was planned and predicted then is no matter of training
    again = replace(again, plan=recorded.plan, hypotheses=recorded.hypotheses)
    differences = tuple(str(value) for value in list_unequal(recorded, again))
    result = CheckResult(
        path=Path(CELLS_FILE),
        cell=planned.name,
        draw="",
        verdict="equal",
        is_explained=True,
        reasons=(),
        differences=differences,
        machine=recorded.machine,
        machine_here=again.machine,
        metrics=dict(again.test),
    )
    if not differences:
        return result
    same, apart, unknown = compare_beginnings(recorded, again)
    reasons = []
    if same:
        reasons.append(f"equal at the beginning: {join_words(same, 'and')}")
    if unknown:
        reasons.append(f"not known of the recorded cell: {join_words(unknown, 'and')}")
    reasons += apart
    shares = list_shares(recorded, again)
    counts = count_samples(planned)
    moved = [share.text for share in shares if not share.is_near(counts[share.split])]
    if not apart and not moved and (shares or not unknown):
        if shares:
            reasons.append("accuracies differ by at most one sample")
        return replace(result, verdict="equal up to rounding", reasons=tuple(reasons))
    reasons += moved
    is_other = recorded.machine != again.machine
    if plan.has_answers:
        # the step at which it is solved depends on the last digits
        reasons.append(
            "on a task with a sudden solution another processor is another seed: compare beginnings"
        )
        if not apart and not unknown and is_other:
            return replace(result, verdict="equal up to rounding", reasons=tuple(reasons))
    is_within, spread = _compare_with_spread(plan, planned, cells, again)
    is_explained = is_other and not apart and (is_within or plan.has_answers)
    if not is_other:
        reasons.append("the processor is of the same kind, so rounding does not explain it")
    return replace(
        result, verdict="different", is_explained=is_explained, reasons=(*reasons, spread)
    )


def compare_beginnings(
    recorded: CellRecord, again: CellRecord
) -> tuple[list[str], list[str], list[str]]:
    """Compare what two runs began with.

    Returns:
        What is equal, how the rest differs, and what the record does not have.
    """
    same: list[str] = []
    apart: list[str] = []
    unknown: list[str] = []
    for feature, before, after in (
        ("number of parameters", recorded.parameters, again.parameters),
        ("planned steps", recorded.planned_steps, again.planned_steps),
        ("order of samples", recorded.order, again.order),
        ("initial weights", *_digest_weights(recorded, again)),
    ):
        if before == after:
            same.append(feature)
        else:
            apart.append(f"not equal at the beginning: {feature}")
    if recorded.first_losses is None or again.first_losses is None:
        unknown.append("losses of the first batches")
    else:
        fault = _compare_losses(recorded.first_losses, again.first_losses)
        (apart if fault else same).append(fault or "losses of the first batches")
    return same, apart, unknown


def _digest_weights(recorded: CellRecord, retrained: CellRecord) -> tuple[object, object]:
    """Return the digests of all initial weights, or those by module of cells that lack them."""
    if recorded.initial_weights is None or retrained.initial_weights is None:
        return group_by_module(recorded.weights), group_by_module(retrained.weights)
    return recorded.initial_weights, retrained.initial_weights


def _compare_losses(recorded: Sequence[float | None], retrained: Sequence[float | None]) -> str:
    """Return how the first losses differ by more than rounding; empty if they do not."""
    if len(recorded) != len(retrained):
        return f"{len(recorded)} first losses were recorded, and {len(retrained)} here"
    for number, (before, after) in enumerate(zip(recorded, retrained, strict=True)):
        tolerance = EARLY_TOLERANCE if number else FIRST_TOLERANCE
        if before is None or after is None:
            is_near = before is after
        else:
            is_near = abs(before - after) <= tolerance * max(1, abs(before))
        if not is_near:
            return f"the loss of batch {number + 1} was {before}, and is {after} here"
    return ""


@dataclass(frozen=True, kw_only=True)
class ComparedShare:
    """A share of samples, such as an accuracy, in both runs.

    Attributes:
        text: The metric with both values.
        split: The samples: val or test.
        before: The recorded value.
        after: That of the second training.
    """

    text: str
    split: str
    before: float | None
    after: float | None

    def is_near(self, count: int) -> bool:
        """Return whether both values differ by at most one of so many samples."""
        if self.before is None or self.after is None:
            return self.before is self.after
        # digits of float32 are no sample
        one_sample = 1 / count if count else 0
        return abs(self.before - self.after) <= one_sample + 1e-6


def count_samples(planned: PlannedCell) -> dict[str, int]:
    """Return {split: the number of samples with which a cell is evaluated}."""
    data = build_data(from_plain(planned.recipe, origin=PLAN, name=planned.name))
    data.prepare_data()
    counts = {}
    for split, stage in (("val", "fit"), ("test", "test")):
        data.setup(stage)
        counts[split] = data.count_samples(split)
    return counts


def list_shares(recorded: CellRecord, again: CellRecord) -> list[ComparedShare]:
    """List the shares of samples that the recorded cell has, with those of the second training."""
    theirs = {measurement.condition.name: measurement.metrics for measurement in again.measured}
    triples = [("", recorded.test, again.test)]
    triples += [
        (
            f" at {measurement.condition.name}",
            measurement.metrics,
            theirs.get(measurement.condition.name, {}),
        )
        for measurement in recorded.measured
    ]
    if recorded.criterion:
        # what chose the trial is stored apart from the metrics of its test
        triples.append(("", {recorded.criterion: recorded.value}, {again.criterion: again.value}))
    return [
        ComparedShare(
            text=f"{metric}{place} was {before}, and is {after.get(metric)} here",
            split=metric.partition("/")[0],
            before=before,
            after=after.get(metric),
        )
        for place, metrics, after in triples
        for metric, before in metrics.items()
        if metric.rpartition("/")[2] in SHARES
    ]


def _compare_with_spread(
    plan: ComparisonPlan,
    planned: PlannedCell,
    cells: Mapping[str, CellRecord],
    retrained: CellRecord,
) -> tuple[bool, str]:
    """Compare the difference of the measure with the spread of the studies of the variant.

    Returns:
        Whether chance explains it, and the comparison as text.
    """
    recorded = cells[planned.name]
    if recorded.is_tested:
        name = plan.measure
        before, after = recorded.test.get(name), retrained.test.get(name)
        values = [
            cell.test.get(plan.measure)
            for cell in cells.values()
            if cell.variant == planned.variant and cell.is_tested
        ]
    else:
        name, before, after = recorded.criterion, recorded.value, retrained.value
        values = [
            cell.value
            for cell in cells.values()
            if cell.variant == planned.variant and cell.trial == planned.trial
        ]
    present = [value for value in values if value is not None]
    if before is None or after is None:
        return before is after, f"{name} was {before}, and is {after} here"
    shown = f"{name} was {before:.5g}, and is {after:.5g} here"
    if len(present) < 2:
        return False, f"{shown}; one study of {planned.variant} tells no spread"
    spread = stdev(present)
    # the two trainings differ by chance, each with this spread
    bound = SPREAD * math.sqrt(2) * spread
    is_within = abs(after - before) <= bound
    within = "within" if is_within else "outside"
    return is_within, (
        f"{shown}: {within} {bound:.2g}, which chance explains (three standard deviations of the "
        f"difference of two of the {len(present)} studies of {planned.variant})"
    )


def _train_again(plan: ComparisonPlan, planned: PlannedCell, *, is_tested: bool) -> CellRecord:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_plan(replace(plan, cells=(planned,)), folder)
        run = make_run_dir(folder / CELLS / planned.name)
        recipe = folder / RECIPES / f"{planned.name}.yaml"
        if planned.trial is not None:
            # the trial that validation chose was tested from where its training had ended
            train_cell(recipe, run, is_tested=False)
            if not is_tested:
                (run / UNTESTED).touch()
        if is_tested or planned.trial is None:
            train_cell(recipe, run, is_tested=True)
        return build_record(plan, folder, planned)
