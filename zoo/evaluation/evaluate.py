"""`zoo eval`: test a checkpoint, also at other sizes, on data variants and by extrapolation."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

import lightning as L

from zoo import files
from zoo.config.command_line import parse_overrides
from zoo.config.schema import format_size
from zoo.data.base import DataModule, Datasets
from zoo.data.spec import DataSpec, ImageSpec, TextClassificationSpec, TextSpec
from zoo.errors import OptionError, RecipeError, Stopped
from zoo.packages import skip_without_package
from zoo.run import checkpoint, conditions, loggers, run_dir
from zoo.run.build import Experiment
from zoo.run.callbacks.guards import StopOnSignal
from zoo.run.callbacks.progress import EvaluationProgress
from zoo.run.load import restore
from zoo.run.machine import is_out_of_memory
from zoo.run.processes import Processes, join_processes
from zoo.tasks.base import Task

log = logging.getLogger("zoo")

RESULT = "evaluation.json"  # in the run directory: the latest evaluation under other conditions
BY_POSITION = ("position_losses", "position_accuracies", "position_counts")
# the trainer of training is not taken over unless overridden
DEFAULT_OVERRIDES = (
    "trainer.accelerator=auto",
    "trainer.devices=1",
    "trainer.num_nodes=1",
    "trainer.strategy=auto",
)

Metrics = dict[str, Any]
ByCondition = dict[str, dict[str, Metrics]]


def evaluate(
    name: str | Path,
    overrides: Sequence[str],
    command: Sequence[str] = (),
    datasets: Datasets | None = None,
) -> dict[str, Any] | None:
    """Test a checkpoint.

    Args:
        name: A run directory or a checkpoint, as `zoo.load` takes it.
        overrides: Changes of the stored recipe.
        command: As in `zoo.run.fit.fit`.
        datasets: The samples of a Python program, for data `torch_dataset`.

    Returns:
        What `--json` prints; None in all processes but the first.

    Raises:
        ZooError: With the exit code of the failure.
    """
    path = checkpoint.locate(name)
    experiment, task = restore(path, parse_overrides([*DEFAULT_OVERRIDES, *overrides]), datasets)
    if datasets is not None:
        experiment.check_single_process()
    processes = join_processes(
        experiment.recipe, experiment.trainer, command or ["eval", str(name), *overrides]
    )
    if processes is None:
        return None
    evaluation = Evaluation(path, experiment, task, processes)
    with StopOnSignal(processes) as stop:
        experiment.trainer.callbacks += [EvaluationProgress(), stop]  # type: ignore[attr-defined]
        result = evaluation.run()
    return result if processes.first else None


class Evaluation:
    """The evaluation of one checkpoint under all conditions of its recipe."""

    def __init__(
        self, path: Path, experiment: Experiment, task: Task, processes: Processes
    ) -> None:
        self.path, self.experiment, self.task = path, experiment, task
        self.recipe, self.processes = experiment.recipe, processes
        self.file = run_dir.find_run_dir(path) / RESULT
        self.found: ByCondition = {}
        # copied now: a strategy may shard them later
        self.weights = task.state_dict() if self.recipe.evaluate.extrapolation else {}

    def run(self) -> dict[str, Any]:
        """Evaluate and return what `--json` prints. Partial results are written as they come."""
        result: dict[str, Any] = {"recipe": self.recipe.name, "checkpoint": str(self.path)}
        try:
            data = self.experiment.data
            result["data"] = data.title
            result |= measure(self.experiment.trainer, self.task, data)
        except OptionError as error:
            key = f"data.{error.key}" if error.key else "data"
            raise RecipeError(self.recipe.make_issue(key, str(error))) from None
        self._write_confusion()

        sizes: dict[str, Any] = {
            "size": _describe_size(data.spec),
            "trained": _describe_size(self.task.spec),
        }
        if data.resizing:
            sizes["shown"] = data.resizing
        try:
            self._measure_conditions(
                lambda: self._write({**result, **self.found, **sizes, "partial": True})
            )
        except Stopped as stopped:
            if not self.found:
                raise
            number = stopped.code - 128
            problem = f"stopped by {Signals(number).name} while testing"
            raise Stopped(number, f"{problem}; {self.file} has the results so far") from None

        if self.processes.first and self.found:
            from zoo.evaluation.report import save_figure

            result |= self.found | sizes
            # the numbers are safe whatever becomes of the figure
            self._write(result)
            with skip_without_package("no figure of the evaluation"):
                figure = save_figure(self.recipe, result, self.file.parent, result["trained"])
                result["figure"] = str(figure)
                self._write(result)
        return result

    def _write_confusion(self) -> None:
        """Write the confusion matrix into a run directory, where the task has one."""
        counts, folder = self.task.confusion, self.file.parent
        is_run = (folder / "checkpoints").is_dir() and os.access(folder, os.W_OK)
        if self.processes.first and counts is not None and is_run:
            classes = loggers.name_classes(self.experiment.data.spec, len(counts))
            loggers.write_confusion([], folder / loggers.CONFUSION, classes, counts, step=0)

    def _write(self, result: Mapping[str, Any]) -> None:
        if self.processes.first:
            files.write_json(result, self.file)

    def _measure_conditions(self, save: Callable[[], None]) -> None:
        """Measure at other sizes, on data variants and by extrapolation; save after each."""
        recipe, trained = self.recipe, self.task.spec
        kinds: dict[str, dict[str, Mapping[str, Any]]] = {
            "resolutions": _get_options(conditions.list_resolutions(recipe, trained)),
            "lengths": _get_options(conditions.list_lengths(recipe, trained)),
            "data_variants": dict(recipe.evaluate.data_variants or {}),
        }
        for kind, variants in kinds.items():
            for name, options in variants.items():
                self.found.setdefault(kind, {})[name] = self._measure_variant(self.task, options)
                save()

        plain = self.found.get("resolutions", {}) | self.found.get("lengths", {})
        sizes = conditions.list_sizes(recipe, trained).items()
        beyond = {name: sized for name, sized in sizes if sized.is_beyond_training}
        for method in dict.fromkeys(recipe.evaluate.extrapolation or ()):
            by_size = self.found.setdefault("extrapolation", {}).setdefault(method, {})
            for name, sized in beyond.items():
                if conditions.changes_encodings(self.task.model, method, sized.factors):
                    log.info("%s: extrapolation %s at %s", recipe.name, method, name)
                    by_size[name] = self._extrapolate(method, sized)
                else:
                    by_size[name] = plain[name]
                save()

    def _extrapolate(self, method: str, sized: conditions.Sized) -> Metrics:
        """Return the metrics by an extrapolation method at a size."""
        try:
            extended = conditions.build_extended_task(
                self.recipe, self.task, self.weights, method, sized.factors
            )
        except OptionError as error:
            return {"refused": str(error)}
        return self._measure_variant(extended, sized.options)

    def _measure_variant(self, task: Task, options: Mapping[str, Any]) -> Metrics:
        """Return metrics with changed options of the data, or why model or machine refuses."""
        trainer = self.experiment.trainer
        try:
            measured = measure(trainer, task, self.experiment.data_variant(options))
        except OptionError as error:
            return {"refused": str(error)}
        except (RuntimeError, MemoryError) as error:
            # other processes would wait for this one
            if trainer.world_size > 1 or not is_out_of_memory(error):
                raise
            return {"refused": "out of memory"}
        rest = {key: value for key, value in measured.items() if key not in ("count", "metrics")}
        return measured["metrics"] | rest


def measure(trainer: L.Trainer, task: Task, data: DataModule) -> dict[str, Any]:
    """Test a task on the test part of some data.

    Returns:
        count and metrics; of a text also how it was cut into windows and, where the task has them,
        losses, accuracies and numbers of targets by position.

    Raises:
        OptionError: The data is not what the model was trained on.
    """
    adapt_data(task, data)
    if isinstance(data.spec, TextSpec):
        task.longest_test_window = data.spec.length
    (metrics,) = trainer.test(task, datamodule=data, verbose=False)
    result: dict[str, Any] = {
        "count": data.count_samples("test"),
        "metrics": {name: float(value) for name, value in metrics.items()},
    }
    if data.windowing:
        result["windows"] = data.windowing
    if isinstance(data.spec, TextSpec):
        # a task counts up to the length of training at least
        length = data.spec.length
        for key in BY_POSITION:
            if values := getattr(task, key, None):
                result[key] = values[:length]
    return result


def adapt_data(task: Task, data: DataModule) -> None:
    """Have data yield what a task was trained on. Raises OptionError where it cannot."""
    data.adopt_spec(task.spec)
    trained, found = task.spec, data.spec
    if isinstance(trained, ImageSpec):
        _check_equal(trained, found, "channels", "classes")
        return
    vocabulary = None if isinstance(found, ImageSpec) else found.vocabulary
    if vocabulary is None or vocabulary.to_dict() != trained.vocabulary.to_dict():
        problem = f"{data.name} has another vocabulary than the data of training"
        raise OptionError("name", f"{problem}; choose text")
    keys = ("classes",) if isinstance(trained, TextClassificationSpec) else ()
    _check_equal(trained, found, *keys)


def _check_equal(trained: DataSpec, found: DataSpec, *keys: str) -> None:
    """Raise OptionError where samples differ from those of training in more than their size."""
    if type(found) is not type(trained):
        raise OptionError("name", f"the model reads {trained.noun}")
    for key in keys:
        ours, theirs = getattr(found, key), getattr(trained, key)
        if ours != theirs:
            raise OptionError(key, f"{ours} {key}, but the model was trained with {theirs}")


def _get_options(sizes: Mapping[str, conditions.Sized]) -> dict[str, Mapping[str, Any]]:
    return {name: sized.options for name, sized in sizes.items()}


def _describe_size(spec: DataSpec) -> int | str:
    """Return the number of tokens or pixels, or HxW of images that are no squares."""
    if not isinstance(spec, ImageSpec):
        return spec.length
    if spec.height == spec.width:
        return spec.height
    return format_size((spec.height, spec.width))
