"""Train from Python: `zoo.fit`, the run that it returns, and `zoo.load` of its task."""

from __future__ import annotations

import logging
import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any, overload

from zoo.api.guard import guard, isolate_process, name_datasets, read_datasets
from zoo.config import Overrides, Recipe, from_plain, join_overrides
from zoo.config import load as load_recipe
from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError, Stopped, refuse_type
from zoo.reporting.tables import build_frame, format_html_table
from zoo.run.shipped import PREFIX, find_folder
from zoo.utils import follow_latest, read_object

if TYPE_CHECKING:
    from torch import nn

    from zoo.data.spec import DataSpec
    from zoo.run.fit import FitResult
    from zoo.tasks.base import Task

log = logging.getLogger("zoo")

DAMAGED = "not as zoo writes it"


class Run:
    """A training run: its recipe, metrics and model, read from its directory.

    Attributes:
        path: The run directory, such as `runs/vit_comrope/latest`.
        outcome: What the call of `zoo.fit` that returned the run has found; else None.
        interrupt: What stopped that call; None if nothing did.

    Raises:
        DataError: The path is not a run directory.
        RecipeError: It is no path.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        outcome: FitResult | None = None,
        interrupt: Stopped | None = None,
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            message = f"expected a path, got {reprlib.repr(path)}"
            raise RecipeError(ConfigIssue(ARGUMENT, "path", message))
        is_shipped = os.fspath(path).startswith(PREFIX)
        self.path = (find_folder(path) if is_shipped else follow_latest(Path(path))).resolve()
        self.outcome, self.interrupt = outcome, interrupt
        if not (self.path / "recipe.yaml").is_file():
            raise DataError(f"{path}: not a run directory, it has no recipe.yaml")

    @cached_property
    def recipe(self) -> Recipe:
        """The resolved recipe; running it again repeats the run."""
        recipe = load_recipe(self.path / "recipe.yaml")
        return replace(recipe, name=self.result.get("recipe", self.path.parent.name))

    @property
    def result(self) -> dict[str, Any]:
        """The output of `zoo fit --json` and the cost of the run; empty until it is complete.

        Raises:
            DataError: end.json is damaged.
        """
        file = self.path / "end.json"
        if not os.path.lexists(file):
            return {}
        result = read_object(file, DAMAGED)
        metrics = result.get("metrics", {})
        if not isinstance(metrics, dict) or not all(map(_is_number, metrics.values())):
            raise DataError(f"{file}: {DAMAGED}, its metrics are no numbers")
        return result

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the best checkpoint on the test data; empty if the run was stopped."""
        return dict(self.result.get("metrics", {}))

    @property
    def stopped(self) -> bool:
        """True if the run ended before its training and test were complete.

        `zoo.fit(..., run_dir=run.path, resume="auto")` continues it.
        """
        return not os.path.lexists(self.path / "end.json")

    def history(self) -> list[dict[str, float]]:
        """Return the rows of metrics.csv: step, epoch and the metrics logged at that step.

        Raises:
            DataError: The file is damaged.
        """
        from zoo.run import loggers

        path = self.path / "metrics.csv"
        if not os.path.lexists(path):
            return []
        _, rows = loggers.read(path)
        return [
            {
                name: int(value) if name in ("step", "epoch") else float(value)
                for name, value in row.items()
                if value
            }
            for row in rows
        ]

    def frame(self) -> Any:
        """Return `history` as a DataFrame of pandas. Raises ZooError if it is not installed."""
        return build_frame(self.history())

    @cached_property
    def task(self) -> Task:
        """The task of the best checkpoint, else of the last one, in evaluation mode on the CPU."""
        return load(self)

    @property
    def model(self) -> nn.Module:
        """The model of `task`, a plain module."""
        return self.task.model

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        state = "stopped" if self.stopped else _format_metrics(self.metrics)
        return f"Run({str(self.path)!r}, {state})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = {"recipe": self.recipe.name, "run directory": str(self.path)}
        rows |= {name: f"{value:.4f}" for name, value in self.metrics.items()}
        if self.stopped:
            rows["state"] = "stopped; resume it with run_dir=run.path, resume='auto'"
        return format_html_table([], [[name, value] for name, value in rows.items()])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _format_metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


@guard
def fit(
    recipe: str | Path | Recipe,
    overrides: Overrides = (),
    *,
    data: Any = None,
    spec: DataSpec | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path = "never",
    accept_changes: str | Sequence[str] = (),
    wait: bool = False,
    verbose: bool | None = True,
) -> Run:
    """Train a recipe, then test its best checkpoint, as `zoo fit` does.

    An interrupt (Ctrl+C, or the stop button of a notebook) saves the state after the current step
    and returns the run, whose `stopped` is then true. A second one stops at once.

    Args:
        recipe: A YAML file, the name of a registered recipe, or a recipe of `zoo.load_recipe`.
        overrides: Changes of the recipe: {key: value}, or a list of `Change` and `Removal` of
            `zoo.config`.
        data: Samples of your own instead of the recipe's: {"train": dataset, "val": ..., "test":
            ...}; a pair (train, val), of which val is the test too; or a Lightning data module. The
            recipe's data becomes `torch_dataset`, with its options `batch_size`, `workers`, `size`.
            Pass `data` again to repeat the run, and to `zoo.evaluate` and `zoo.diagnose`.
        spec: The facts of the samples of `data`: `zoo.ImageSpec`, `zoo.VideoSpec`, `zoo.TextSpec`
            or `zoo.TextClassificationSpec`. By default the attribute `spec` of `data`.
        run_dir: The run directory; by default a new one, runs/RECIPE/TIME-HASH.
        resume: "never", "auto" for the latest run, or the run or checkpoint to resume from.
        accept_changes: Keys of the recipe that may differ from those of the checkpoint to resume
            from: "data.batch_size" or "data.global_batch_size", at the end of an epoch. Steps and
            schedule are counted anew.
        wait: Wait while another process trains in the run directory, instead of raising.
        verbose: Print progress and results to standard error.

    Returns:
        The run.

    Raises:
        ZooError: Another process trains in the run directory; the message names it.
        RecipeError: The recipe, an override or an argument is wrong; nothing was started.
        DataError: Data is missing or unreadable.
        CheckpointError: The checkpoint to resume from is missing, corrupt or of another recipe.
        NonFiniteError: A loss, gradient or weight became non-finite.
    """
    # arguments first: a wrong one is reported before the recipe is read
    datasets = read_datasets(data, spec)
    edits = join_overrides(name_datasets(datasets), overrides)
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, edits)
    elif edits:
        origin = f"recipe {recipe.name}"
        recipe = from_plain(recipe.plain(), edits, origin=origin, name=recipe.name)
    # a wrong recipe is reported before Lightning and the data libraries are imported
    from zoo.run.fit import fit as run_fit

    paths: list[Path] = []
    try:
        outcome = run_fit(
            recipe,
            follow_latest(Path(run_dir)) if run_dir else None,
            os.fspath(resume),
            datasets=datasets,
            accept_changes=[accept_changes] if isinstance(accept_changes, str) else accept_changes,
            wait=wait,
            started=paths.append,
        )
    except Stopped as stopped:
        # no run directory exists yet, so there is no run to return
        if not paths:
            raise
        interrupt = stopped
    except (KeyboardInterrupt, SystemExit):  # Lightning exits at one that nobody handles
        if not paths:
            raise
        message = f"interrupted at once; {paths[0]} holds what was saved before"
        interrupt = Stopped(SIGINT, message)
    else:
        return Run(outcome.run, outcome=outcome)
    # the command line prints it as it ends
    if verbose is not None:
        log.info("%s", interrupt)
    return Run(paths[0], interrupt=interrupt)


@dataclass(frozen=True)
class StoredRecipe:
    """The recipe of a checkpoint as plain data; predicts and generates with its task."""

    name: str
    plain: dict[str, Any]

    def change(self, section: str, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe with options of a section changed."""
        edits = {f"{section}.{key}": value for key, value in options.items()}
        return from_plain(self.plain, edits, origin=f"recipe {self.name}", name=self.name)

    def predict(self, task: Task, inputs: Any, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Predict for inputs, as `Task.predict` does."""
        from zoo.evaluation.predict import predict_inputs
        from zoo.run.build import Experiment

        with isolate_process(verbose=False):
            experiment = Experiment(self.change("predict", options), task.spec)
            return predict_inputs(experiment, task, inputs)

    def generate(self, task: Task, prompt: str, options: Mapping[str, Any]) -> str:
        """Continue a prompt, as `Task.generate` does."""
        from zoo.evaluation.generate import generate_samples

        with isolate_process(verbose=False):
            recipe = self.change("generate", {**options, "prompt": prompt, "samples": 1})
            (sample,) = generate_samples(recipe, task)
            return sample.text


def build_model(recipe: Recipe, spec: DataSpec | None = None) -> nn.Module:
    """Build a recipe's model with initial weights from torch's random state.

    Encodings draw theirs from random streams of their own, so that all other weights are equal
    whatever the encoding.

    Args:
        recipe: A resolved recipe, as `zoo.load_recipe` returns it.
        spec: The facts of the samples that the model is built for. None: those of the recipe's
            data. No sample is loaded either way.

    Returns:
        The model as a plain `nn.Module`, in training mode on torch's default device.

    Raises:
        OptionError: An option cannot work, or the model does not read such samples.
        DataError: `spec` is None and the data's text cannot be read.
    """
    from zoo.data.spec import DataSpec
    from zoo.run import build

    if not isinstance(recipe, Recipe):
        raise refuse_type("recipe", recipe, "a recipe of zoo.load_recipe")
    if spec is None:
        spec = build.build_data(recipe).spec
    if not isinstance(spec, DataSpec):
        raise refuse_type("spec", spec, "facts of samples, such as zoo.ImageSpec")
    return build.build_model(recipe, spec)


@overload
def load(checkpoint: Run, overrides: Overrides = ()) -> Task: ...


@overload
def load(checkpoint: str | Path, overrides: Overrides = ()) -> Any: ...


@guard
def load(checkpoint: str | Path | Run, overrides: Overrides = ()) -> Any:
    """Load the task of a checkpoint with its weights, ready to evaluate, predict and generate.

    A folder that `zoo.save` wrote gives the model of transformers, with its encodings. It cannot be
    unequipped: what was removed is not in the folder.

    Args:
        checkpoint: A run, a run directory (its best checkpoint, else its last), `RUN/last`,
            `RUN/best`, a checkpoint file, a folder that `zoo.export` or `zoo.save` wrote, such a
            folder on the Hub, hf://owner/name, or a model that zoo ships, zoo:NAME
            (`zoo list weights`).
        overrides: Changes of the stored recipe, as of `zoo.load_recipe`; none for a folder of
            `zoo.save`, which has no recipe.

    Returns:
        The task in evaluation mode on the CPU; its `model` is the plain module. Its `predict` takes
        images, texts or files, its `generate` a prompt.

    Raises:
        CheckpointError: The checkpoint is missing, corrupt, unsafe, of another version of zoo, or
            its weights do not fit the recipe.
        RecipeError: An override is wrong.
        PackageError: transformers or safetensors is missing, for a folder of `zoo.save`.
    """
    from zoo.integrations.equip import load as load_equipped
    from zoo.integrations.saved_equipment import holds_equipped
    from zoo.run import checkpoint as checkpoints
    from zoo.run.load import restore

    path = checkpoints.find_addressed(checkpoint) or follow_latest(Path(checkpoint))
    if holds_equipped(path):
        if overrides:
            message = "a model that zoo.save wrote has no recipe"
            raise RecipeError(ConfigIssue(ARGUMENT, "overrides", message, "leave them out"))
        return load_equipped(path)
    path = checkpoints.locate(path)
    experiment, task = restore(path, overrides, is_trained=True)
    recipe = experiment.recipe
    task.application = StoredRecipe(recipe.name, recipe.plain())
    return task
