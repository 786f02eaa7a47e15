"""The results of a comparison as data: variants, their cells by seed, their flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Literal, Self

from zoo.comparison.looks import FIVE_LOOKS
from zoo.errors import DataError
from zoo.launch.executor import State
from zoo.options.plain import to_plain
from zoo.options.stored import build_stored
from zoo.reporting.numbers import finite
from zoo.run.conditions import Condition
from zoo.utils import read_json

Better = Literal["high", "low"]
Measure = Literal["accuracy", "exact", "loss", "miou"]
"""The metrics that a comparison can be of."""

ANALYSIS = (
    "analysis",
    "baselines",
    "winning_baseline",
    "equal_compute",
    "judgements",
    "steps_to_solve",
    "scaling",
)
"""Keys of results.json that follow from the others: they are written for readers only."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A key of the recipe that varies.

    Attributes:
        key: The full key, such as `model.encoding`.
        title: Its last part, if no other axis has the same.
        values: The values as people write them: rope, alibi+dape.
        settings: The values as plain data, in the same order.
    """

    key: str
    title: str
    values: tuple[str, ...]
    settings: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class CellMeasurement:
    """The metrics of a cell under one condition.

    Attributes:
        condition: The condition.
        metrics: {metric: value}; None where a file has no finite number.
        refused: Why nothing was measured; empty if something was.
        position_losses: The mean loss in each bin of positions of the window, None where no token
            is a target; empty for tasks without it.
        position_edges: The first position of each bin, and the end of the last one; empty if each
            position is a bin.
        baselines: {metric: {baseline: value}} of what models must beat under this condition; empty
            for the test data of the recipe, whose baselines are those of the cell, and for
            extrapolation methods, which have those of their size.
    """

    condition: Condition
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    refused: str = ""
    position_losses: tuple[float | None, ...] = ()
    position_edges: tuple[int, ...] = ()
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def list_position_losses(self) -> list[float | None]:
        """Return the loss at each position: that of its bin."""
        if not self.position_edges:
            return [*self.position_losses]
        widths = (high - low for low, high in pairwise(self.position_edges))
        losses: list[float | None] = []
        for loss, width in zip(self.position_losses, widths, strict=False):
            losses += [loss] * width
        return losses


@dataclass(frozen=True)
class StepsToSolve:
    """When a task was solved."""

    steps: int
    """The step of the first validation at the threshold, or of the last one if there is none."""
    is_solved: bool
    """False if training ended before: the true number of steps is larger (censored)."""


@dataclass(frozen=True, kw_only=True)
class TrainedCell:
    """The costs and progress of a training run. Unknown values are empty or None.

    Attributes:
        seed: The seed.
        error: Why it failed, in a line.
        steps_to_solve: When a synthetic task was solved, if it has validations.
        parameters: Number of parameters.
        flops: Operations of a forward pass of one sample, as `zoo show` counts them.
        backends: Backends that compute attention, each once.
        steps: Training steps that were done.
        minutes: Minutes of training, over all attempts.
        step_seconds: Median seconds of a step, while other cells may run at the same time.
        baselines: {metric: {baseline: value}} of what models must beat, on the test data of the
            recipe with this seed.
    """

    seed: int
    error: str = ""
    steps_to_solve: StepsToSolve | None = None
    parameters: int | None = None
    flops: int | None = None
    backends: tuple[str, ...] = ()
    steps: int | None = None
    minutes: float | None = None
    step_seconds: float | None = None
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ComparisonCell(TrainedCell):
    """One training run as results have it.

    Attributes:
        run_dir: The run directory, relative to the output folder.
        state: How far it has come.
        measurements: What was measured, the test data of the recipe first.
        curve: (step, monitored metric) of validations, thinned if there are many.
        peak_memory: Peak bytes of the process.
        different_start: What differed at the start from the cells of the same seed: names of
            weights, order of samples.
    """

    run_dir: str
    state: State
    measurements: tuple[CellMeasurement, ...] = ()
    curve: tuple[tuple[int, float | None], ...] = ()
    peak_memory: int | None = None
    different_start: tuple[str, ...] = ()

    @cached_property
    def by_condition(self) -> Mapping[str, CellMeasurement]:
        """{name of a condition: what was measured under it}."""
        return {
            measurement.condition.name: measurement for measurement in reversed(self.measurements)
        }

    def find(self, condition: Condition) -> CellMeasurement:
        """Return what was measured under a condition; without metrics if nothing was."""
        return self.by_condition.get(condition.name) or CellMeasurement(condition=condition)


@dataclass(frozen=True)
class Flag:
    """A difference of a variant from the others, besides its values.

    Attributes:
        kind: One word: parameters, attention, start, failed seeds.
        text: The difference.
        minor: True if the difference is too small to mark the variant.
    """

    kind: str
    text: str
    minor: bool = False


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The cells of one combination of values, one for each seed.

    Attributes:
        name: Its name.
        values: {key of an axis: label of its value}.
        cells: Its cells.
        flags: How it differs from the others.
    """

    name: str
    values: Mapping[str, str]
    cells: tuple[ComparisonCell, ...]
    flags: tuple[Flag, ...] = ()

    @property
    def flag_kinds(self) -> tuple[str, ...]:
        """The kinds of its flags, without minor ones."""
        return tuple(dict.fromkeys(flag.kind for flag in self.flags if not flag.minor))


@dataclass(frozen=True, kw_only=True)
class SearchedKey:
    """A tuned key, with the range or the choices as people write them: [0.0003,0.03,log]."""

    key: str
    searched: str


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A trial: its settings, and its best validation metric, None if it became non-finite."""

    settings: Mapping[str, Any]
    value: float | None


@dataclass(frozen=True, kw_only=True)
class RangeEnd:
    """The end of what was tried at which the best setting lies: a better one may lie beyond."""

    key: str
    side: Literal["lower", "upper"]


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """The trials of a variant in a study, and the number of the one that was tested."""

    study: int
    seed: int
    trials: tuple[TrialResult, ...]
    best: int | None


@dataclass(frozen=True, kw_only=True)
class VariantStudies:
    """The finished studies of a variant.

    Attributes:
        keys: The tuned keys that have an effect on it.
        studies: Its studies.
        edges: Ends of ranges at which most studies chose their setting.
    """

    keys: tuple[str, ...]
    studies: tuple[StudyResult, ...]
    edges: tuple[RangeEnd, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StudiesResult:
    """The settings that the studies of all variants chose.

    Attributes:
        budget: Trials of each variant in each study.
        criterion: The validation metric that chose.
        better: Whether high or low values of it are better.
        keys: The tuned keys.
        variants: {variant: its studies}.
    """

    budget: int
    criterion: str
    better: Better
    keys: tuple[SearchedKey, ...]
    variants: Mapping[str, VariantStudies]


@dataclass(frozen=True, kw_only=True)
class StoppedVariant:
    """A variant that a look stopped: it is not trained further.

    Attributes:
        variant: Its name.
        look: The number of studies that were finished.
        other: The best one, which it is worse than; or the other variant of a claim.
        difference: How much better it is than the other one, in units of the metric.
        low: The lower end of the simultaneous interval of the difference.
        high: The upper end.
        p_value: Of the difference, or of one as large as the claimed effect; corrected.
        claim: The hypothesis whose effect the interval leaves out; empty if it is worse.
        effect: The claimed effect.
    """

    variant: str
    look: int
    other: str
    difference: float
    low: float
    high: float
    p_value: float | None
    claim: str = ""
    effect: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RaceLook:
    """A look at the studies that were finished: the best variant, and those that run on."""

    studies: int
    best: str
    running: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """The decisions of a race. They follow from the cells and the hypotheses.

    Attributes:
        measure: The metric by which it is raced.
        level: Probability that all intervals of a look hold their true differences.
        looks: The looks that were taken.
        stopped: The variants that they stopped.
        is_over: Whether nothing is left to decide.
    """

    measure: str
    level: float
    looks: tuple[RaceLook, ...] = ()
    stopped: tuple[StoppedVariant, ...] = ()
    is_over: bool = False

    def find_stopped(self, variant: str) -> StoppedVariant | None:
        """Return what stopped a variant; None if nothing did."""
        return next((stopped for stopped in self.stopped if stopped.variant == variant), None)

    def is_trained(self, variant: str, study: int) -> bool:
        """Return whether a variant is trained in a study, as far as the looks tell."""
        if self.is_over and study >= self.looks[-1].studies:
            return False
        stopped = self.find_stopped(variant)
        return stopped is None or study < stopped.look


@dataclass(frozen=True, kw_only=True)
class RecordedHypothesis:
    """A hypothesis as the output folder keeps it.

    Attributes:
        text: The claim.
        written: When it was written, UTC.
        runs_ended: Number of trials and cells that had ended by then.
        withdrawn: When a later command no longer had it, UTC.
        cannot_ask: Why the task cannot ask it, by a pilot; empty if it can, or without a pilot.
    """

    text: str
    written: str
    runs_ended: int
    withdrawn: str = ""
    cannot_ask: str = ""


@dataclass(frozen=True, kw_only=True)
class RecordFlaw:
    """A reason to doubt the record of a comparison, shown to every reader of its page.

    Attributes:
        kind: The kind of flaw.
        text: What happened to which cell, block or hypothesis.
    """

    kind: Literal[
        "edited", "missing study", "split block", "test leak", "late hypothesis", "trained on"
    ]
    text: str


@dataclass(frozen=True, kw_only=True)
class ComparisonSubject:
    """The subject of a comparison, which its plan and its results share.

    Attributes:
        zoo_version: The version of zoo that planned it.
        created: When it was planned, UTC.
        command: The command that repeats the comparison, and continues an unfinished one.
        recipe: The name of the recipe.
        base: The recipe that all cells share, as plain data.
        machine: The machine.
        axes: The keys that vary.
        seeds: The seeds.
        measure: The compared metric, such as test/accuracy.
        better: Whether high or low values of it are better.
        earlier: How many seeds or studies earlier plans of this folder had, each a look at them.
        question: The condition that is asked about; None: all of them.
        looks: The planned looks as `plan_looks` returns them; None in plans of version 0.3.0.
    """

    zoo_version: str
    created: str
    command: str
    recipe: str
    base: Mapping[str, Any]
    machine: Mapping[str, Any]
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    measure: str
    better: Better
    earlier: tuple[int, ...] = ()
    question: str | None = None
    looks: tuple[tuple[int, float], ...] | None = None

    @property
    def look_levels(self) -> dict[int, float]:
        """{number of studies: probability that the intervals of this look hold}."""
        return FIVE_LOOKS if self.looks is None else dict(self.looks)

    @property
    def planned(self) -> tuple[int, ...]:
        """How many seeds or studies were planned, in the order of the plans."""
        return (*self.earlier, len(self.seeds))


@dataclass(frozen=True, kw_only=True)
class Comparison(ComparisonSubject):
    """All variants, and how they were trained.

    Attributes:
        conditions: The evaluation conditions: the test data of the recipe first, then the others
            in its order.
        windows: How texts were cut into windows: side by side, or sliding by a number of tokens.
        shared_weights: How many weights all variants have, by name and shape, with equal initial
            values.
        variants: The variants.
        hypotheses: The hypotheses of the output folder.
        findings: Reasons to doubt the record.
        studies: What the studies chose, if there are some; a seed is then that of a study.
        race: The decisions of the looks, if variants were raced.
        target: Value of the monitored metric that `steps_to_solve` of all cells waits for. None:
            they wait for a solved synthetic task.
        monitor: The validation metric of the curves, such as val/loss; empty if it is not known.
    """

    conditions: tuple[Condition, ...]
    windows: str = ""
    shared_weights: int = 0
    variants: tuple[Variant, ...]
    hypotheses: tuple[RecordedHypothesis, ...] = ()
    findings: tuple[RecordFlaw, ...] = ()
    studies: StudiesResult | None = None
    race: RaceResult | None = None
    target: float | None = None
    monitor: str = ""

    @property
    def cells(self) -> list[ComparisonCell]:
        """The cells of all variants."""
        return [cell for variant in self.variants for cell in variant.cells]

    @property
    def trained(self) -> Condition:
        """The first condition: the test data of the recipe."""
        return self.conditions[0]

    @property
    def extrapolation_methods(self) -> tuple[str, ...]:
        """The extrapolation methods of the conditions with their factors, each once."""
        methods = (condition.method for condition in self.conditions)
        return tuple(dict.fromkeys(method for method in methods if method is not None))

    @property
    def bounds(self) -> tuple[float, float]:
        """The range of the measure: a loss is positive, an accuracy is at most 1."""
        return find_bounds(self.better)

    @property
    def monitor_title(self) -> str:
        """The metric of the validations as people say it: validation loss."""
        return f"validation {self.monitor.rpartition('/')[2] or 'metric'}"

    def find_condition(self, name: str) -> Condition:
        """Return the condition of a name. Raises KeyError if there is none."""
        return {condition.name: condition for condition in self.conditions}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON can hold it; `read` gives it back."""
        plain: dict[str, Any] = finite(to_plain(self))
        if self.target is None:
            del plain["target"]
        return plain

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the comparison of a file. Raises DataError if it holds none."""
        plain = read_json(path, "holds no comparison")
        if isinstance(plain, dict):
            # computed anew from the cells, so that an edited or older analysis is never believed
            plain = {key: value for key, value in plain.items() if key not in ANALYSIS}
            if plain.pop("tuning", None) is not None:
                message = "was tuned once before its seeds, which zoo no longer reads"
                raise DataError(f"{message}; compare in studies instead", place=path)
        return build_stored(cls, plain, path, "holds no comparison")


def find_direction(measure: str) -> Better:
    """Return whether high or low values of a measure are better."""
    return "low" if measure == "loss" else "high"


def find_bounds(better: Better) -> tuple[float, float]:
    """Return the range of a measure: a loss is positive, an accuracy is at most 1."""
    return (0.0, 1.0) if better == "high" else (0.0, inf)
