"""`zoo eval`: test a checkpoint, also at other sizes, on data variants and by extrapolation."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from signal import Signals
from typing import Any

import lightning as L

from zoo.config import Overrides, join_overrides
from zoo.data.base import DataModule, Datasets
from zoo.data.baselines import Baselines
from zoo.data.spec import name_classes
from zoo.errors import (
    ARGUMENT,
    ConfigIssue,
    Message,
    OptionError,
    RecipeError,
    Setting,
    Stopped,
    ZooError,
)
from zoo.evaluation.results import (
    POSITION_LISTS,
    ConditionResult,
    Evaluation,
    save_figure,
    save_tables,
    table,
)
from zoo.packages import skip_without_package
from zoo.run import checkpoint as checkpoints
from zoo.run import conditions
from zoo.run.build import Experiment
from zoo.run.callbacks.progress import EvaluationProgress
from zoo.run.callbacks.stop_on_signal import StopOnSignal
from zoo.run.conditions import TRAINED, Condition
from zoo.run.load import restore
from zoo.run.machine import check_denormals
from zoo.run.memory import suggest_smaller
from zoo.run.processes import Processes, count_missing_processes, join_processes, run_in_processes
from zoo.tasks.base import Task
from zoo.tasks.metrics import CONFUSION, express_baselines, write_confusion
from zoo.utils import (
    check_writable,
    explain_memory,
    is_out_of_memory,
    require_replaceable,
    write_json,
)

log = logging.getLogger("zoo")

RESULT = "evaluation.json"  # in the run directory: the latest evaluation under other conditions
# the trainer of training is not taken over unless overridden
DEFAULT_OVERRIDES = {
    "trainer.accelerator": "auto",
    "trainer.devices": 1,
    "trainer.num_nodes": 1,
    "trainer.strategy": "auto",
    "trainer.reshard_after_forward": True,
    "trainer.replicas": 1,
    "trainer.sharded_checkpoints": False,
}


@dataclass(frozen=True, kw_only=True)
class EvaluationTarget:
    """The place where an evaluation writes its files."""

    to: str | None = None
    """Folder of evaluation.json, its tables and figure; null: the run directory."""


def evaluate(
    checkpoint: str | Path,
    overrides: Overrides = (),
    datasets: Datasets | None = None,
    to: str | None = None,
) -> Evaluation:
    """Test a checkpoint under all conditions of its recipe.

    Args:
        checkpoint: A run directory or a checkpoint, as `zoo.load` takes it.
        overrides: Changes of the stored recipe.
        datasets: The samples of a Python program, for data `torch_dataset`.
        to: The folder to write to. None: the run directory.

    Returns:
        The evaluation, in all processes; only the first draws a figure.

    Raises:
        ZooError: With the exit code of the failure.
    """
    path = checkpoints.locate(checkpoint)
    if to is None:
        to = checkpoints.name_results(checkpoint)
    experiment, task = restore(path, join_overrides(DEFAULT_OVERRIDES, overrides), datasets)
    return evaluate_task(task, experiment, path, to)


def evaluate_task(
    task: Task, experiment: Experiment, path: Path, to: str | None = None
) -> Evaluation:
    """Test the task of a checkpoint under all conditions of its recipe.

    Args:
        task: The task.
        experiment: The recipe of the checkpoint, after all changes, with its data and trainer.
        path: The checkpoint file.
        to: The folder to write to. None: the run directory.

    Returns:
        The evaluation, in all processes.
    """
    recipe, trainer = experiment.recipe, experiment.trainer
    if count := count_missing_processes(recipe, trainer):
        job = {"checkpoint": str(path), "to": to}
        result = run_in_processes(count, "evaluate", recipe, job)
        return Evaluation.from_dict(result)

    processes = join_processes(recipe, trainer)
    check_denormals(trainer.strategy.root_device.type)
    evaluator = Evaluator(path, experiment, task, processes, to)
    with StopOnSignal(processes) as stop:
        # last, so that a batch is counted before the signal ends the test
        trainer.callbacks += [EvaluationProgress(), stop]  # type: ignore[attr-defined]
        return evaluator.run()


class Evaluator:
    """Measures one checkpoint under all conditions of its recipe.

    What cannot be written is measured and returned all the same.
    """

    def __init__(
        self,
        path: Path,
        experiment: Experiment,
        task: Task,
        processes: Processes,
        to: str | None = None,
    ) -> None:
        self.path, self.experiment, self.task = path, experiment, task
        self.recipe, self.processes = experiment.recipe, processes
        self.is_chosen = to is not None
        self.file = (checkpoints.find_run_dir(path) if to is None else Path(to)) / RESULT
        self.problem = ""
        """Why a file could not be written."""
        # copied now: a strategy may shard them later
        self.weights = task.state_dict() if self.recipe.evaluate.extrapolation else {}

    def run(self) -> Evaluation:
        """Measure all conditions. Partial results are written as they come.

        Raises:
            RecipeError: The results cannot be written; nothing was measured.
        """
        data, trained = self.experiment.data, self.task.spec
        base, *further = conditions.list_conditions(self.recipe, trained)
        is_written = bool(further) or self.is_chosen
        if is_written:
            self._check_writable()
        try:
            with explain_memory(partial(suggest_smaller, self.recipe)):
                _check_classes(self.task, data)
                base_result = self._test(self.task, data, base, has_baselines=bool(further))
        except OptionError as error:
            key = f"data.{error.key}" if error.key else "data"
            key = "evaluate.entropy" if error.key == "entropy" else key
            raise RecipeError(self.recipe.make_issue(key, str(error))) from None
        self._write_confusion()

        # an override of the data may have changed its size
        base = replace(base, size=data.spec.size)
        base_result = replace(base_result, condition=base)
        result = Evaluation(
            recipe=self.recipe.name,
            checkpoint=self.path,
            data=data.title,
            count=data.count_samples("test"),
            trained_size=trained.size,
            conditions=(base_result,),
            resizing=data.resizing or "",
        )
        try:
            for condition in further:
                measured = self._measure(condition, result.conditions)
                # written after each condition: an evaluation that is stopped keeps what it has
                result = replace(result, conditions=(*result.conditions, measured), partial=True)
                self._write(result)
        except Stopped as stopped:
            if not result.partial:
                raise
            number = stopped.code - 128
            message = f"stopped by {Signals(number).name} while testing"
            if self.problem:
                log.info("%s", table(result))
                raise Stopped(number, f"{message}; {self.problem}") from None
            raise Stopped(number, f"{message}; {self.file} has the results so far") from None
        result = replace(result, partial=False)
        if is_written and self.processes.first:
            self._write(result)
            with self._keep_measuring():
                save_tables(result, self.file.parent)
            # after the numbers: the renderer may end the process where memory is short
            if further:
                result = self._draw(result)
        return replace(result, problem=self.problem)

    def _check_writable(self) -> None:
        """Raise RecipeError where the results cannot be written."""
        folder = self.file.parent
        try:
            if self.is_chosen:
                folder.mkdir(parents=True, exist_ok=True)
            require_replaceable(self.file)
            check_writable(folder)
        except OSError as error:
            message = f"{self.file} cannot be written, {error.strerror or error}"
            hint = Message("write it elsewhere, with ", Setting("to", "evaluation"))
            raise RecipeError(ConfigIssue(ARGUMENT, "to", message, hint)) from None

    def _draw(self, result: Evaluation) -> Evaluation:
        """Write the figure, and its path into the result."""
        with self._keep_measuring(), skip_without_package("no figure of the evaluation"):
            result = replace(result, figure=save_figure(result, self.file.parent))
            self._write(result)
        return result

    @contextmanager
    def _keep_measuring(self) -> Iterator[None]:
        """Note why a file of the block cannot be written: what is measured is worth more."""
        try:
            yield
        except (OSError, ZooError) as error:
            message = str(error)
            if isinstance(error, OSError):
                where = error.filename or self.file
                message = f"{where}: cannot be written, {error.strerror or error}"
            if not self.problem:
                log.warning("%s", message)
            self.problem = self.problem or message

    def _write_confusion(self) -> None:
        """Write the confusion matrix into a run directory, where the task has one."""
        counts, folder = self.task.confusion, self.file.parent
        if counts is None:
            return
        if not self.is_chosen:
            # beside a checkpoint, it would be among files that have nothing to do with it
            if not (folder / "checkpoints").is_dir():
                return
            if not os.access(folder, os.W_OK):
                log.info("%s is not written: %s may only be read", CONFUSION, folder)
                return
        if self.processes.first:
            classes = name_classes(self.experiment.data.spec, len(counts))
            with self._keep_measuring():
                write_confusion(folder / CONFUSION, classes, counts)

    def _write(self, result: Evaluation) -> Evaluation:
        if self.processes.first:
            with self._keep_measuring():
                write_json(result.to_dict(), self.file)
        return result

    def _measure(self, condition: Condition, done: Sequence[ConditionResult]) -> ConditionResult:
        """Measure a condition, or record why the model or the machine refuses it."""
        task = self.task
        try:
            if condition.extrapolation is not None:
                assert condition.size is not None
                factors = conditions.compute_factors(task.spec, condition.size)
                method = condition.extrapolation
                if not conditions.changes_model(task.model, method, factors):
                    # an encoding that needs no change at this size has the plain result under the
                    # method, too
                    (plain,) = (
                        result
                        for result in done
                        if result.condition.kind == "size"
                        and result.condition.size == condition.size
                    )
                    return replace(plain, condition=condition, baselines={})
                log.info("%s: extrapolation to %s", self.recipe.name, condition.describe())
                task = conditions.build_extended_task(
                    self.recipe, task, self.weights, method, factors, condition.factor
                )
            options = conditions.choose_data_options(self.recipe, condition)
            data = self.experiment.data_variant(options)
            if condition.data_variant is not None:
                _check_classes(task, data)
            has_baselines = condition.extrapolation is None
            return self._test(task, data, condition, has_baselines=has_baselines)
        except OptionError as error:
            return ConditionResult(condition=condition, refused=str(error))
        except (RuntimeError, MemoryError) as error:
            # other processes would wait for this one
            if self.processes.count > 1 or not is_out_of_memory(error):
                raise
            return ConditionResult(condition=condition, refused="out of memory")

    def _test(
        self, task: Task, data: DataModule, condition: Condition, *, has_baselines: bool
    ) -> ConditionResult:
        """Test a task on the test part of some data; keep metrics by position too.

        Args:
            task: The task, which may extrapolate.
            data: The data, not set up.
            condition: The condition that they are of.
            has_baselines: Whether the baselines of the training data are scored on the samples too.

        Raises:
            OptionError: The data is not what the model was trained on.
        """
        metrics = measure_metrics(self.experiment.trainer, task, data)
        positions: dict[str, Any] = {}
        if data.spec.target_unit == "token":
            # a task counts up to the training length at least
            (length,) = data.spec.size
            positions = {
                name: tuple(values[:length])
                for name in POSITION_LISTS
                if (values := getattr(task, name, None))
            }
            positions["depth_exacts"] = tuple(getattr(task, "depth_exacts", ()))
        if ious := getattr(task, "class_ious", None):
            names = name_classes(data.spec, len(ious))
            positions["class_ious"] = dict(zip(names, ious, strict=True))
        if self.recipe.evaluate.entropy:
            from zoo.evaluation.attention_entropy import measure_entropies

            entropies, positions["entropies"] = measure_entropies(task, data)
            metrics |= entropies
        baselines: Baselines = {}
        if has_baselines and task.has_data_baselines:
            baselines = express_baselines(self._score_baselines(data), metrics)
        return ConditionResult(
            condition=condition,
            metrics=metrics,
            windows=data.windowing or "",
            baselines=baselines,
            **positions,
        )

    @cached_property
    def _score_baselines(self) -> Callable[[DataModule], Baselines]:
        """The baselines that are fitted on the training data, if these are at hand."""
        data, trained = self.experiment.data, self.task.spec.size
        try:
            if data.spec.size != trained:
                # an override of the data has changed its size
                key = "size" if len(trained) == 2 else "length"
                if key not in self.recipe.data.options:
                    message = "overridden options, which decide its size, hide the training data"
                    raise OptionError(key, message)
                condition = Condition(TRAINED, "size", trained)
                options = conditions.choose_data_options(self.recipe, condition)
                data = self.experiment.data_variant(options)
                adapt_data(self.task, data)
            data.setup("fit")
            return data.fit_baselines()
        except (ZooError, OptionError) as error:
            log.info("%s: no baselines without the training data: %s", self.recipe.name, error)
            return lambda tested: {}


def measure_metrics(trainer: L.Trainer, task: Task, data: DataModule) -> dict[str, float]:
    """Return the metrics of a task on the test part of some data.

    Raises:
        OptionError: The data is not what the model was trained on.
    """
    adapt_data(task, data)
    if data.spec.target_unit == "token":
        (task.longest_test_window,) = data.spec.size
    (metrics,) = trainer.test(task, datamodule=data, verbose=False)
    return {name: float(value) for name, value in metrics.items()}


def _check_classes(task: Task, data: DataModule) -> None:
    """Check that test samples have the classes of a task. Raises OptionError."""
    adapt_data(task, data)
    data.check_classes("test")


def adapt_data(task: Task, data: DataModule) -> None:
    """Adapt a data module to the vocabulary and classes of a trained task.

    Raises:
        OptionError: It cannot yield such samples.
    """
    # before its set-up: the data encodes with the vocabulary of the checkpoint instead of its own
    data.adopt_spec(task.spec)
    task.spec.check_tested(data.spec, data.name)
