"""A trained run as the subject of a diagnosis."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo.config import Overrides, Recipe, join_overrides
from zoo.data.base import Datasets
from zoo.data.spec import name_classes
from zoo.diagnosis.inputs import (
    CapturedAttention,
    Inputs,
    Saved,
    describe_masks,
    describe_samples,
    load_samples,
    read_saved,
    take_rows,
)
from zoo.diagnosis.position_use import UNCHANGED, SampleValues, compare_samples
from zoo.diagnosis.report import Control, Sample, SegmentedImage
from zoo.diagnostics.position_ablation import Change, change_positions
from zoo.errors import ARGUMENT, ConfigIssue, NonFiniteError, OptionError, RecipeError
from zoo.evaluation.evaluate import DEFAULT_OVERRIDES, measure_metrics
from zoo.evaluation.generate import move_to_device
from zoo.run import checkpoint
from zoo.run.build import Experiment
from zoo.run.callbacks.progress import EvaluationProgress
from zoo.run.callbacks.stop_on_signal import StopOnSignal
from zoo.run.checkpoint import find_run_dir
from zoo.run.load import restore
from zoo.run.processes import Processes
from zoo.tasks.base import Task

log = logging.getLogger("zoo")

LOSS = "test/loss"
"""The metric of all tasks by which changes of positions are judged."""


class TrainedRun:
    """A restored checkpoint.

    Args:
        name: A name that is unique on the page.
        path: The checkpoint file.
        experiment: What its recipe describes.
        task: The restored task.
    """

    saved: Saved

    def __init__(self, name: str, path: Path, experiment: Experiment, task: Task) -> None:
        self.name, self.path, self.checkpoint = name, path, str(path)
        self.experiment, self.task = experiment, task
        self.batch: Any = None
        self.inputs: Inputs = ()
        self.class_ious: dict[str, float] = {}

    @property
    def recipe(self) -> Recipe:
        """The recipe of the checkpoint."""
        return self.experiment.recipe

    @property
    def model(self) -> nn.Module:
        """The model of the task."""
        return self.task.model

    @property
    def encodings(self) -> tuple[str, ...]:
        """The names of the encodings in the recipe."""
        return self.recipe.encodings

    @property
    def label(self) -> str:
        """The name of the model in the recipe."""
        return self.recipe.model.name

    @property
    def has_shapes(self) -> bool:
        """True if images keep their shapes."""
        return self.recipe.data.options.get("aspect") == "keep"

    def read_saved(self) -> None:
        """Read the recipe and the curves of the run. Raises DataError."""
        self.saved = read_saved(self.path, self.recipe, self.task.spec)

    def load_inputs(self, shown: int, measured: int) -> tuple[Inputs, Inputs]:
        """Load the first test samples, and move the model to its device."""
        task, data = self.task, self.experiment.data
        move_to_device(task, self.recipe)
        with self.locate_errors("data"):
            batch = load_samples(task, data, max(shown, measured), self.has_shapes)
        self.batch = take_rows(batch, shown)
        with self.locate_errors("task"):
            inputs, self.inputs = task.inputs(batch), task.inputs(self.batch)
        return self.inputs, self.inputs if len(batch[0]) <= shown else inputs

    def describe_samples(self, seen: CapturedAttention) -> tuple[Sample, ...]:
        """Return the samples with titles: their classes, and what the model predicts."""
        return describe_samples(self.task, self.experiment.data, self.batch, self.inputs, seen)

    def describe_masks(self) -> tuple[SegmentedImage, ...]:
        """Return the samples with their masks and predictions; none if pixels have no class."""
        return describe_masks(self.task, self.experiment.data, self.batch, self.inputs)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of pixels; none for other tasks."""
        spec = self.task.spec
        return name_classes(spec, spec.class_count or 0) if spec.target_unit == "pixel" else ()

    def run_controls(self, changes: Mapping[str, Change], limit: int | None) -> Iterator[Control]:
        """Test on the test data, first with unchanged positions, then with each change.

        Args:
            changes: Changes of positions, by name.
            limit: Test batches at most.
        """
        trainer, task = self.experiment.trainer, self.task
        if limit is not None:
            trainer.limit_test_batches = limit
        with StopOnSignal(Processes()) as stop:
            # one trainer for all tests: Lightning would find devices and print their warnings each
            # time
            trainer.callbacks += [EvaluationProgress(), stop]  # type: ignore[attr-defined]
            log.info("%s: testing with positions %s", self.name, UNCHANGED)
            measured, before = self._test()
            pairs = zip(self.classes, getattr(task, "class_ious", None) or (), strict=False)
            self.class_ious = {name: value for name, value in pairs if value is not None}
            yield Control(name=UNCHANGED, metrics=measured)
            for name, change in changes.items():
                log.info("%s: testing with positions %s", self.name, name)
                try:
                    with change_positions(task.model, change):
                        measured, after = self._test()
                except OptionError as error:
                    yield Control(name=name, metrics={}, refused=str(error))
                else:
                    by = compare_samples(before, after)
                    yield Control(name=name, metrics=measured, change=by)

    def _test(self) -> tuple[dict[str, float], SampleValues | None]:
        """Return the test metrics, and the loss of each sample if the task keeps it."""
        experiment, task = self.experiment, self.task
        kept: list[torch.Tensor] = []
        task.sample_losses = kept
        try:
            metrics = measure_metrics(experiment.trainer, task, experiment.data)
        finally:
            task.sample_losses = None
        if not kept or LOSS not in metrics:
            return metrics, None
        sums, counts = torch.cat(kept, dim=1)
        return metrics, SampleValues(LOSS, sums / counts, counts)

    def list_facts(self, seen: CapturedAttention, limit: int | None) -> dict[str, str]:
        """Return the data, and how much of it the model was tested on."""
        data = self.experiment.data
        tested = describe_test(data.count_samples("test"), self.recipe, limit)
        facts = {"data": data.title, "tested on": tested}
        if self.has_shapes:
            facts["shown"] = "images of the shape that is commonest among the first"
        # of all test samples, so that they say nothing of a part of these
        count = data.count_samples("test") if limit is None else 0
        baselines = self.saved.find_baselines(data.title, count)
        return facts | ({"baselines": baselines} if baselines else {})

    @contextmanager
    def locate_errors(self, section: str) -> Iterator[None]:
        """Raise an OptionError within the block as an issue of a section of the recipe."""
        try:
            yield
        except OptionError as error:
            key = f"{section}.{error.key}" if error.key else section
            raise RecipeError(self.recipe.make_issue(key, str(error))) from None


def load_runs(
    names: Sequence[str | Path],
    overrides: Overrides,
    datasets: Datasets | None,
    verb: str = "diagnose",
) -> list[TrainedRun]:
    """Restore checkpoints.

    Args:
        names: Run directories or checkpoints.
        overrides: Changes of the stored recipes.
        datasets: The samples of a Python program.
        verb: What is done with them, for messages.

    Raises:
        RecipeError: A name is missing or appears twice, or an override is wrong.
        CheckpointError: As `zoo.load` raises it.
        NonFiniteError: A weight is not finite.
    """
    if not names or "" in names:
        problem = "an empty name" if names else f"nothing to {verb}"
        remedy = "name a run directory or a checkpoint"
        raise RecipeError(ConfigIssue(ARGUMENT, "", problem, remedy))
    paths = [checkpoint.locate(name) for name in names]
    # the same checkpoint under two names would be one column, twice
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            raise RecipeError(ConfigIssue(ARGUMENT, str(path), "named twice", "name each once"))

    edits = join_overrides(DEFAULT_OVERRIDES, overrides)
    loaded = [(path, *restore(path, edits, datasets)) for path in paths]
    for path, experiment, task in loaded:
        _check_weights(path, task)
        if experiment.trainer.world_size > 1:
            problem, remedy = "a diagnosis runs in one process", "leave it at 1"
            issue = experiment.recipe.make_issue("trainer.devices", problem, remedy)
            raise RecipeError(issue)
    labels = _choose_names([(experiment.recipe.name, path) for path, experiment, _ in loaded])
    return [TrainedRun(label, *one) for label, one in zip(labels, loaded, strict=True)]


def _check_weights(path: Path, task: Task) -> None:
    """Raise NonFiniteError if a weight is infinite or NaN."""
    for name, weight in task.named_parameters():
        if not weight.isfinite().all():
            others = checkpoint.describe_checkpoints(path.parent, path)
            problem = f"{name} has weights that are infinite or NaN"
            raise NonFiniteError(f"{path}: {problem}; {others}")


def _choose_names(known: Sequence[tuple[str, Path]]) -> list[str]:
    """Return the shortest kind of name that tells all runs apart.

    That is the recipe's name, with the run directory, with the checkpoint, or with a number.
    """
    kinds: list[Callable[[str, Path], str]] = [
        lambda recipe, path: recipe,
        lambda recipe, path: f"{recipe} {find_run_dir(path).name}",
        lambda recipe, path: f"{recipe} {find_run_dir(path).name} {path.stem}",
    ]
    for kind in kinds:
        names = [kind(*one) for one in known]
        if len(set(names)) == len(names):
            return names
    return [f"{recipe} {number + 1}" for number, (recipe, _) in enumerate(known)]


def describe_test(count: int, recipe: Recipe, limit: int | None) -> str:
    """Return how many test samples, or how many batches of them, a test reads."""
    batch_size = recipe.data.options.get("batch_size")
    if limit is None or limit * (batch_size or 0) >= count:
        return f"{count:,} samples"
    batches = f"{limit:,} batch" if limit == 1 else f"{limit:,} batches"
    size = f" of {batch_size:,}" if batch_size else ""
    return f"{batches}{size}; the test part has {count:,}"
