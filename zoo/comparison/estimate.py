"""Estimate cells, steps, FLOPs, disk and time of a comparison before anything is started.

Minutes come from finished cells of comparisons in neighbouring folders whose model, data and
machine settings are the same, steps of epochs from those of the same data. Training may be longer
or shorter, which scales them.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from zoo.comparison.cell_files import is_done
from zoo.comparison.compare import choose_folder, plan_comparison
from zoo.comparison.pilot import ask_pilot
from zoo.comparison.plan import PLAN, ComparisonPlan, PlannedCell, count_length, join_existing
from zoo.comparison.record_file import read_cells
from zoo.comparison.records import find_recorded, read_records
from zoo.comparison.request import CheckedRequest
from zoo.config import Recipe
from zoo.errors import DataError
from zoo.options.plain import to_plain
from zoo.reporting.numbers import format_fixed, pluralize
from zoo.reporting.tables import format_markdown
from zoo.run.build import Experiment
from zoo.run.processes import PASSES, StepSize

log = logging.getLogger("zoo")

UNKNOWN = "unknown"
CHECKPOINTS = 2
"""Checkpoints of a cell: the last and the best one."""
WEIGHT_BYTES = 4
COPIES = 3
"""Numbers in a checkpoint for each weight: its value and the two moments of AdamW."""
RECORD_BYTES = 4000
"""Size of the record of a finished cell."""
FREE = ("name", "seed", "optim", "evaluate", "generate", "predict", "init_from")
"""Sections of recipes that have nothing to do with the time of a step."""
FREE_KEYS = ("trainer.max_steps", "trainer.max_epochs", "trainer.num_threads")

Amount = TypeVar("Amount", int, float)


@dataclass(frozen=True, kw_only=True)
class CellCost:
    """The cost of a recorded cell, in training steps and minutes for the length of its recipe."""

    folder: str
    processor: str
    unit: str
    length: int
    steps: int | None
    minutes: float | None


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """The time and operations of the training that is left.

    Attributes:
        steps: Training steps; None if nothing is known of the length of an epoch.
        flops: Operations of these steps; None if unknown.
        minutes: Minutes by records; None without records.
    """

    steps: int | None
    flops: float | None
    minutes: float | None


@dataclass(frozen=True, kw_only=True)
class VariantEstimate(TrainingCost):
    """The estimate for the cells of a variant that are not done.

    Attributes:
        variant: Its name.
        cells: How many cells or trials are left.
        parameters: Its parameters.
        epochs: Epochs of those whose recipes count epochs.
        records: The folders of the records.
        processors: The processors of the records.
        checkpoint_bytes: The size of a checkpoint, with AdamW's moments.
    """

    variant: str
    cells: int
    parameters: int
    epochs: int
    records: tuple[str, ...]
    processors: tuple[str, ...]
    checkpoint_bytes: int


@dataclass(frozen=True, kw_only=True)
class ComparisonEstimate:
    """The estimate for a comparison, of which nothing is started.

    Attributes:
        folder: The output folder.
        is_new: Whether there is nothing in that folder yet.
        cells: All its cells or trials.
        done: How many of them are done, here or in a record.
        blocks: Its seeds, or its studies.
        budget: Trials of each variant in each study; None if nothing is tuned.
        jobs: Cells that run at the same time.
        processor: The processor of this machine.
        variants: The estimate of each variant.
        keeps_weights: Whether checkpoints of finished cells stay.
        is_raced: Whether looks may stop variants earlier.
    """

    folder: Path
    is_new: bool
    cells: int
    done: int
    blocks: int
    budget: int | None
    jobs: int
    processor: str
    variants: tuple[VariantEstimate, ...]
    keeps_weights: bool
    is_raced: bool

    @property
    def left(self) -> int:
        """Cells or trials that are not done."""
        return self.cells - self.done

    @property
    def steps(self) -> int | None:
        """Training steps that are left; None if those of a variant are not known."""
        return add_known(variant.steps for variant in self.variants)

    @property
    def flops(self) -> float | None:
        """Operations that are left; None if those of a variant are not known."""
        return add_known(variant.flops for variant in self.variants)

    @property
    def minutes(self) -> float | None:
        """Minutes until the end, with `jobs` cells at a time; None if a variant has no record."""
        if not self.left:
            return 0.0
        minutes = add_known(variant.minutes for variant in self.variants)
        return None if minutes is None else minutes / min(self.jobs, self.left)

    @property
    def disk(self) -> int:
        """The most bytes at a time: checkpoints of the cells that have some, and all records."""
        sizes = [
            size
            for variant in self.variants
            for size in [CHECKPOINTS * variant.checkpoint_bytes] * variant.cells
        ]
        kept_cells = len(sizes) if self.keeps_weights else self._count_kept()
        return (
            # an upper bound: the largest checkpoints may be those that exist at the same time
            sum(sorted(sizes)[len(sizes) - min(kept_cells, len(sizes)) :])
            + RECORD_BYTES * self.cells
        )

    def _count_kept(self) -> int:
        """Return how many cells have checkpoints at a time; trials of a study wait for its end."""
        trials = 0 if self.budget is None else len(self.variants) * self.budget
        return max(self.jobs, trials)

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as plain data, with its sums."""
        sums = {"steps": self.steps, "flops": self.flops, "minutes": self.minutes}
        return {**to_plain(self), "folder": str(self.folder), "disk": self.disk, **sums}

    def table(self) -> str:
        """Return the text that `zoo compare --dry-run` prints."""
        return "\n".join(_format_lines(self))


def add_known(values: Iterable[Amount | None]) -> Amount | None:
    """Return a sum; None if a value is not known."""
    total: Amount = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def estimate_comparison(checked: CheckedRequest) -> ComparisonEstimate:
    """Estimate what a comparison would take. Nothing is written or started.

    Raises:
        RecipeError: The output folder holds something else.
    """
    plan, resources = plan_comparison(checked)
    folder = choose_folder(checked.request, plan)
    is_new = not folder.exists()
    if not is_new:
        plan = join_existing(plan, folder)
    options = checked.request.options
    ask_pilot(options.pilot, options.hypotheses, plan)
    recorded = find_recorded(plan, read_records(options.records))
    left = [
        cell
        for cell in plan.cells
        if cell.name not in recorded and (is_new or not is_done(plan, folder, cell))
    ]
    places = [folder.parent, *map(Path, options.records)]
    records = list_records(places)
    variants = []
    for combination, recipe in checked.recipes.items():
        variant_cells = [cell for cell in left if cell.variant == combination.name]
        variants.append(
            _estimate_variant(combination.name, plan, variant_cells, Experiment(recipe), records)
        )
    return ComparisonEstimate(
        folder=folder,
        is_new=is_new,
        cells=len(plan.cells),
        done=len(plan.cells) - len(left),
        blocks=len(plan.blocks),
        budget=plan.design.budget if plan.design else None,
        jobs=resources.jobs,
        processor=str(plan.machine["processor"]),
        variants=tuple(variants),
        keeps_weights=options.keep == "weights",
        is_raced=options.racing,
    )


def list_records(places: Sequence[Path]) -> dict[str, list[CellCost]]:
    """Return what finished cells of the comparisons in folders cost, by their settings."""
    costs: dict[str, list[CellCost]] = {}
    # each place is a comparison itself, or holds some
    paths = (
        path for place in places for at in ("", "*/") for path in sorted(place.glob(at + PLAN))
    )
    for path in dict.fromkeys(paths):
        folder = path.parent
        try:
            plan, cells = ComparisonPlan.read(folder), read_cells(folder)
        except DataError as error:
            log.info("%s", error)
            continue
        for planned in plan.cells:
            record = cells.get(planned.name)
            if record is None:
                continue
            if record.is_refused:
                log.info("%s/%s", folder, record.error)
                continue
            unit, length = count_length(planned.recipe["trainer"])
            cost = CellCost(
                folder=str(folder),
                processor=str(plan.machine.get("processor", "")),
                unit=unit,
                length=length,
                steps=record.planned_steps,
                minutes=record.minutes,
            )
            # the time of a step depends on all settings, the length of an epoch on the data only
            costs.setdefault(_describe_work(plan, planned), []).append(cost)
            costs.setdefault(_describe_epoch(plan, planned), []).append(cost)
    return costs


def _describe_work(plan: ComparisonPlan, planned: PlannedCell) -> str:
    """Return the settings that decide how long a step takes, as text."""
    settings = {
        key: value
        for key, value in plan.list_settings(planned).items()
        if key.partition(".")[0] not in FREE and key not in FREE_KEYS
    }
    return json.dumps(settings, sort_keys=True)


def _describe_epoch(plan: ComparisonPlan, planned: PlannedCell) -> str:
    """Return the settings that decide how many steps an epoch has: no encoding is among them."""
    settings = {
        key: value
        for key, value in plan.list_settings(planned).items()
        if key.startswith("data.") or key == "trainer.accumulate_grad_batches"
    }
    return json.dumps(settings, sort_keys=True)


def _estimate_variant(
    name: str,
    plan: ComparisonPlan,
    cells: Sequence[PlannedCell],
    experiment: Experiment,
    records: Mapping[str, Sequence[CellCost]],
) -> VariantEstimate:
    parameters = sum(parameter.numel() for parameter in experiment.meta_model.parameters())
    copies = COPIES + (experiment.recipe.trainer.ema_decay is not None)
    steps: list[float | None] = []
    minutes: list[float | None] = []
    used: list[CellCost] = []
    lengths = [count_length(cell.recipe["trainer"]) for cell in cells]
    for cell, (unit, length) in zip(cells, lengths, strict=True):
        same_work = [
            cost for cost in records.get(_describe_work(plan, cell), ()) if cost.unit == unit
        ]
        read = [cost for cost in records.get(_describe_epoch(plan, cell), ()) if cost.unit == unit]
        timed = [cost for cost in same_work if cost.minutes is not None]
        used += timed
        minutes.append(_scale(timed, length, "minutes"))
        # a limit in steps needs no record, one in epochs does
        is_counted = unit == "max_steps"
        steps.append(length if is_counted else _scale(read, length, "steps"))
    total = add_known(steps)
    total = None if total is None else round(total)
    return VariantEstimate(
        variant=name,
        cells=len(cells),
        parameters=parameters,
        epochs=sum(length for unit, length in lengths if unit == "max_epochs"),
        steps=total,
        flops=_count_flops(experiment, steps),
        minutes=add_known(minutes),
        records=tuple(dict.fromkeys(cost.folder for cost in used)),
        processors=tuple(dict.fromkeys(cost.processor for cost in used)),
        checkpoint_bytes=WEIGHT_BYTES * copies * parameters,
    )


def _count_flops(experiment: Experiment, steps: Sequence[float | None]) -> float | None:
    """Return the operations of the trainings of a variant; None if their steps are unknown."""
    stages = experiment.list_stages()
    ends = [*(first for first, _ in stages[1:]), math.inf]
    total = 0.0
    for known in steps:
        if known is None:
            return None
        for (first, staged), end in zip(stages, ends, strict=True):
            step_flops = PASSES * staged.flops * count_samples(staged.recipe)
            total += step_flops * max(0, min(round(known), end) - first)
    return total


def count_samples(recipe: Recipe) -> int:
    """Return the samples of a training step; a cell is one process."""
    step = StepSize.plan(recipe, 1)
    return step.total or step.accumulated


def _scale(costs: Sequence[CellCost], length: int, key: str) -> float | None:
    """Return the median of what records cost, for a training of another length."""
    # a median below: a machine may have been busy with something else at times
    rates = [getattr(cost, key) / cost.length for cost in costs if getattr(cost, key) is not None]
    return length * median(rates) if rates else None


def _format_lines(estimate: ComparisonEstimate) -> Iterator[str]:
    head = ["variant", "parameters", "cells left", "steps", "FLOPs", "minutes"]
    rows = [
        [
            variant.variant,
            f"{variant.parameters:,}",
            f"{variant.cells:,}",
            f"{variant.epochs:,} epochs" if variant.steps is None else f"{variant.steps:,}",
            UNKNOWN if variant.flops is None else f"{variant.flops:.2e}",
            UNKNOWN if variant.minutes is None else format_fixed(variant.minutes, 1),
        ]
        for variant in estimate.variants
    ]
    yield format_markdown(head, rows, ("variant",))
    yield ""
    yield f"folder: {estimate.folder}{', which does not exist yet' if estimate.is_new else ''}"
    noun = "trial" if estimate.budget else "cell"
    blocks = pluralize(estimate.blocks, "seed")
    if estimate.budget:
        blocks = "1 study" if estimate.blocks == 1 else f"{estimate.blocks} studies"
    trials_each = f", {pluralize(estimate.budget, 'trial')} each" if estimate.budget else ""
    raced = "; a race may stop variants earlier" if estimate.is_raced else ""
    yield (
        f"{noun}s: {estimate.cells:,} "
        f"({pluralize(len(estimate.variants), 'variant')}, {blocks}{trials_each}), "
        f"{estimate.done:,} of them done, {estimate.jobs} at a time{raced}"
    )
    unknown = "unknown, since the recipe counts epochs and no record says how long one is"
    yield f"steps: {unknown if estimate.steps is None else f'{estimate.steps:,}'}"
    flops = UNKNOWN if estimate.flops is None else f"{estimate.flops:.2e}"
    yield f"FLOPs: {flops}, of training; a backward pass is counted as two forward passes"
    when = "all are kept" if estimate.keeps_weights else "those of finished cells are deleted"
    yield (
        f"disk: at most {estimate.disk / 1e6:,.1f} MB, for weights and AdamW's moments in "
        f"{CHECKPOINTS} checkpoints of each cell, of which {when}; logs come on top"
    )
    yield f"time: {_format_time(estimate)}"


def _format_time(estimate: ComparisonEstimate) -> str:
    parent = estimate.folder.parent
    if not estimate.left:
        return "none, all is done"
    missing = [variant.variant for variant in estimate.variants if variant.minutes is None]
    if missing:
        names = ", ".join(missing)
        return f"unknown, since no finished cell in {parent} has the settings of {names}"
    records = ", ".join(
        dict.fromkeys(name for variant in estimate.variants for name in variant.records)
    )
    other_processors = dict.fromkeys(
        name for variant in estimate.variants for name in variant.processors
    )
    other_processors.pop(estimate.processor, None)
    elsewhere = (
        f", measured on {', '.join(other_processors)}, not on {estimate.processor}"
        if other_processors
        else ""
    )
    return f"{format_fixed(estimate.minutes, 1)} minutes, by the records of {records}{elsewhere}"
