"""Estimate what a suite would take, also where its data are on another machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zoo.comparison.estimate import (
    UNKNOWN,
    TrainingCost,
    add_known,
    count_samples,
    estimate_comparison,
)
from zoo.comparison.plan import count_length
from zoo.comparison.suite import Suite, SuitePart
from zoo.comparison.suite_run import ComparedPart, SuiteComparison
from zoo.options.plain import to_plain
from zoo.reporting.numbers import format_fixed
from zoo.reporting.tables import format_markdown
from zoo.run.build import Experiment
from zoo.run.processes import PASSES

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
        return add_known(part.steps for part in self.parts)

    @property
    def flops(self) -> float | None:
        """Operations that are left; None if those of a part are not known."""
        return add_known(part.flops for part in self.parts)

    @property
    def minutes(self) -> float | None:
        """Minutes by records, with all jobs at work; None if a part has no record."""
        return add_known(part.minutes for part in self.parts)

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


def estimate_suite(suite: SuiteComparison) -> SuiteEstimate:
    """Estimate what a suite would take. Nothing is written or started.

    Raises:
        RecipeError: The output folder of a part holds something else.
    """
    declared = suite.file.suite
    return SuiteEstimate(
        folder=str(suite.folder),
        parts=tuple(_estimate_part(declared, part) for part in suite.parts),
        flops_per_second=declared.flops_per_second,
    )


def _estimate_part(suite: Suite, part: ComparedPart) -> PartEstimate:
    if part.experiments is not None:
        cells, cost = _count_by_sizes(suite, part.declared, part.experiments)
        left = cells
    elif part.checked is not None:
        estimate = estimate_comparison(part.checked)
        cells, left = estimate.cells, estimate.left
        cost = TrainingCost(steps=estimate.steps, flops=estimate.flops, minutes=estimate.minutes)
    # encodings that are not applicable run nothing
    else:
        cells = left = 0
        cost = TrainingCost(steps=0, flops=0.0, minutes=0.0)
    return PartEstimate(
        name=part.name,
        cells=cells,
        left=left,
        steps=cost.steps,
        flops=cost.flops,
        minutes=cost.minutes,
        has_data=part.experiments is None,
        refused=part.refused,
    )


def _count_by_sizes(
    suite: Suite, part: SuitePart, experiments: Sequence[Experiment]
) -> tuple[int, TrainingCost]:
    """Count cells and cost of a part without its data, by the sizes that the suite declares."""
    sizes = part.stand_in
    repeats = suite.seeds if suite.studies is None else suite.studies * (suite.budget or 1)
    # rates that are tuned change neither steps nor operations, so one recipe stands for all trials
    total, flops = 0, 0.0
    for experiment in experiments:
        unit, length = count_length(to_plain(experiment.recipe.trainer))
        samples = count_samples(experiment.recipe)
        # a last batch that is not full is dropped
        epoch = (sizes.samples or 0) // samples if sizes else 0
        steps = repeats * length * (epoch if unit == "max_epochs" else 1)
        total += steps
        flops += PASSES * experiment.flops * samples * steps
    return repeats * len(experiments), TrainingCost(steps=total, flops=flops, minutes=None)


def _format_lines(estimate: SuiteEstimate) -> Iterator[str]:
    rows = [
        [
            part.name,
            f"{part.cells:,}",
            f"{part.left:,}",
            UNKNOWN if part.steps is None else f"{part.steps:,}",
            UNKNOWN if part.flops is None else f"{part.flops:.2e}",
            UNKNOWN if part.minutes is None else format_fixed(part.minutes, 1),
            "" if part.has_data else "declared sizes",
            ", ".join(part.refused),
        ]
        for part in estimate.parts
    ]
    heads = ["part", "cells", "left", "steps", "FLOPs", "minutes", "counted by", "not applicable"]
    yield format_markdown(heads, rows, ("part", "counted by", "not applicable"))
    yield ""
    yield f"folder: {estimate.folder}"
    steps = UNKNOWN if estimate.steps is None else f"{estimate.steps:,}"
    flops = UNKNOWN if estimate.flops is None else f"{estimate.flops:.2e}"
    left = sum(part.left for part in estimate.parts)
    yield f"left: {left:,} cells or trials, {steps} training steps"
    yield f"FLOPs: {flops}; a backward pass is counted as two forward passes"
    if estimate.minutes is not None:
        yield f"time: {format_fixed(estimate.minutes, 1)} minutes, by records of the same settings"
    # an assumption is named as such, and never mixed with minutes of records
    elif estimate.device_hours is not None:
        yield (
            f"time: no record; {estimate.device_hours:,.0f} hours of a device at "
            f"{estimate.flops_per_second:.1e} operations per second, which the suite assumes"
        )
    else:
        yield "time: unknown, since no record has the same settings"
    if any(not part.has_data for part in estimate.parts):
        yield "data of some parts are not on this machine: set PART.data.path=FOLDER for each"
