"""Estimate what a suite would take, also where its data are on another machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zoo.comparison.estimate import TrainingCost, count_samples, estimate_comparison
from zoo.comparison.plan import count_length
from zoo.comparison.ranking import PASSES
from zoo.comparison.suite_run import (
    PartRequest,
    SuitePlan,
    SuiteRequest,
    check_part,
    load_part,
    plan_suite,
)
from zoo.options.plain import to_plain
from zoo.reporting.numbers import format_fixed
from zoo.reporting.tables import format_markdown
from zoo.run.build import Experiment

UNKNOWN = "unknown"
HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class PartEstimate(TrainingCost):
    """The cells of a part that are left, and their cost.

    Attributes:
        name: The part.
        cells: All its cells or trials.
        left: Those that are not done, here or in a record; all, where its data are not here.
        has_data: Whether its data are on this machine; else it is counted by declared sizes.
        refused: {encoding: why it is not applicable}.
    """

    name: str
    cells: int
    left: int
    has_data: bool
    refused: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SuiteEstimate:
    """The cells of a suite that are left, of which nothing is started.

    Attributes:
        folder: The output folder.
        parts: Its parts.
        flops_per_second: Operations of a device in a second that the suite assumes, if it does.
    """

    folder: str
    parts: tuple[PartEstimate, ...]
    flops_per_second: float | None

    @property
    def steps(self) -> int | None:
        """Training steps that are left; None if those of a part are not known."""
        steps = _add(part.steps for part in self.parts)
        return None if steps is None else int(steps)

    @property
    def flops(self) -> float | None:
        """Operations that are left; None if those of a part are not known."""
        return _add(part.flops for part in self.parts)

    @property
    def minutes(self) -> float | None:
        """Minutes by records, with all jobs at work; None if a part has no record."""
        return _add(part.minutes for part in self.parts)

    @property
    def device_hours(self) -> float | None:
        """Hours of a device that does the assumed operations; None without an assumption."""
        if self.flops is None or self.flops_per_second is None:
            return None
        return self.flops / self.flops_per_second / HOUR

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as plain data, with its sums."""
        sums = {"steps": self.steps, "flops": self.flops, "minutes": self.minutes}
        return {**to_plain(self), **sums, "device_hours": self.device_hours}

    def table(self) -> str:
        """Return the text that `zoo compare suite=NAME --dry-run` prints."""
        return "\n".join(_format_lines(self))


def _add(values: Iterable[float | None]) -> float | None:
    """Return a sum; None if a value is not known."""
    total: float = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def estimate_suite(request: SuiteRequest) -> SuiteEstimate:
    """Estimate what a suite would take. Nothing is written or started.

    Raises:
        RecipeError: The suite, an argument or an encoding is wrong.
        DataError: Data is missing, and the suite declares no sizes to count by.
    """
    plan = plan_suite(request, needs_data=False)
    return SuiteEstimate(
        folder=str(plan.folder),
        parts=tuple(_estimate_part(plan, one) for one in plan.parts),
        flops_per_second=plan.file.suite.flops_per_second,
    )


def _estimate_part(plan: SuitePlan, part: PartRequest) -> PartEstimate:
    if part.stand_in is not None:
        cells, cost = _count_by_sizes(plan, part)
        left = cells
    # an encoding that is not applicable runs nothing
    elif (checked := check_part(part)) is None:
        cells = left = 0
        cost = TrainingCost(steps=0, flops=0.0, minutes=0.0)
    else:
        estimate = estimate_comparison(checked)
        cells, left = estimate.cells, estimate.left
        cost = TrainingCost(steps=estimate.steps, flops=estimate.flops, minutes=estimate.minutes)
    return PartEstimate(
        name=part.name,
        cells=cells,
        left=left,
        steps=cost.steps,
        flops=cost.flops,
        minutes=cost.minutes,
        has_data=part.stand_in is None,
        refused=part.refused,
    )


def _count_by_sizes(plan: SuitePlan, part: PartRequest) -> tuple[int, TrainingCost]:
    """Count cells and cost of a part without its data, by the sizes that the suite declares."""
    suite, sizes = plan.file.suite, part.part.stand_in
    repeats = suite.seeds if suite.studies is None else suite.studies * (suite.budget or 1)
    encodings = part.arguments["encodings"]
    # rates that are tuned change neither steps nor operations, so one recipe stands for all trials
    total, flops = 0, 0.0
    for encoding in encodings:
        recipe = load_part(part, encoding)
        unit, length = count_length(to_plain(recipe.trainer))
        samples = count_samples(recipe)
        # a last batch that is not full is dropped
        epoch = (sizes.samples or 0) // samples if sizes else 0
        steps = repeats * length * (epoch if unit == "max_epochs" else 1)
        total += steps
        flops += PASSES * Experiment(recipe, part.stand_in).flops * samples * steps
    return repeats * len(encodings), TrainingCost(steps=total, flops=flops, minutes=None)


def _format_lines(found: SuiteEstimate) -> Iterator[str]:
    rows = [
        [
            one.name,
            f"{one.cells:,}",
            f"{one.left:,}",
            UNKNOWN if one.steps is None else f"{one.steps:,}",
            UNKNOWN if one.flops is None else f"{one.flops:.2e}",
            UNKNOWN if one.minutes is None else format_fixed(one.minutes, 1),
            "" if one.has_data else "declared sizes",
            ", ".join(one.refused),
        ]
        for one in found.parts
    ]
    heads = ["part", "cells", "left", "steps", "FLOPs", "minutes", "counted by", "not applicable"]
    yield format_markdown(heads, rows, ("part", "counted by", "not applicable"))
    yield ""
    yield f"folder: {found.folder}"
    steps = UNKNOWN if found.steps is None else f"{found.steps:,}"
    flops = UNKNOWN if found.flops is None else f"{found.flops:.2e}"
    yield f"left: {sum(one.left for one in found.parts):,} cells or trials, {steps} training steps"
    yield f"FLOPs: {flops}; a backward pass is counted as two forward passes"
    if found.minutes is not None:
        yield f"time: {format_fixed(found.minutes, 1)} minutes, by records of the same settings"
    # an assumption is named as such, and never mixed with minutes of records
    elif found.device_hours is not None:
        yield (
            f"time: no record; {found.device_hours:,.0f} hours of a device at "
            f"{found.flops_per_second:.1e} operations per second, which the suite assumes"
        )
    else:
        yield "time: unknown, since no record has the same settings"
    if any(not one.has_data for one in found.parts):
        yield "data of some parts are not on this machine: set PART.data.path=FOLDER for each"
