"""Results of the Python functions: a run, a loaded task, a diagnosis."""

from __future__ import annotations

import html
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from zoo import config
from zoo.config import Overrides, Recipe
from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError
from zoo.reporting.tables import build_frame, format_html_table
from zoo.run.process_state import isolate_process

if TYPE_CHECKING:
    from torch import nn

    from zoo.diagnosis.report import Report
    from zoo.tasks.base import Task


class Run:
    """A training run: its recipe, metrics and model, read from its directory.

    Args:
        path: The run directory, such as `runs/vit_comrope/latest`.

    Raises:
        DataError: The path is not a run directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        """The run directory."""
        if not (self.path / "recipe.yaml").is_file():
            raise DataError(f"{path}: not a run directory, it has no recipe.yaml")

    @cached_property
    def recipe(self) -> Recipe:
        """The resolved recipe; running it again repeats the run."""
        recipe = config.load(self.path / "recipe.yaml")
        return replace(recipe, name=self.result.get("recipe", self.path.parent.name))

    @property
    def result(self) -> dict[str, Any]:
        """The output of `zoo fit --json` and the cost of the run; empty until it is complete."""
        try:
            found = json.loads((self.path / "end.json").read_text(encoding="utf-8"))
        except OSError:
            return {}
        return dict(found)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the best checkpoint on the test data; empty if the run was stopped."""
        return dict(self.result.get("metrics", {}))

    @property
    def stopped(self) -> bool:
        """True if the run ended before its training and test were complete.

        `zoo.fit(..., run_dir=run.path, resume="auto")` continues it.
        """
        return not (self.path / "end.json").is_file()

    def history(self) -> list[dict[str, float]]:
        """Return the rows of metrics.csv: step, epoch and the metrics logged at that step."""
        from zoo.run import loggers

        path = self.path / "metrics.csv"
        if not path.is_file():
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


def _format_metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


@dataclass(frozen=True)
class StoredRecipe:
    """The recipe of a checkpoint as plain data; predicts and generates with its task."""

    name: str
    plain: dict[str, Any]

    def change(self, section: str, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe with options of a section changed."""
        edits = {f"{section}.{key}": value for key, value in options.items()}
        return config.from_plain(self.plain, edits, origin=f"recipe {self.name}", name=self.name)

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


@overload
def load(checkpoint: Run, overrides: Overrides = ()) -> Task: ...


@overload
def load(checkpoint: str | Path, overrides: Overrides = ()) -> Any: ...


def load(checkpoint: str | Path | Run, overrides: Overrides = ()) -> Any:
    """Load the task of a checkpoint with its weights, ready to evaluate, predict and generate.

    A folder that `zoo.save` wrote gives the model of transformers, with its encodings. It cannot be
    unequipped: what was removed is not in the folder.

    Args:
        checkpoint: A run, a run directory (its best checkpoint, else its last), `RUN/last`,
            `RUN/best`, a checkpoint file, or a folder that `zoo.save` wrote.
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
    with isolate_process(verbose=True):
        from zoo.integrations import equip
        from zoo.run import checkpoint as checkpoints
        from zoo.run.load import restore

        path = Path(checkpoint)
        if equip.holds_equipped(path):
            if overrides:
                problem = "a model that zoo.save wrote has no recipe"
                raise RecipeError(ConfigIssue(ARGUMENT, "overrides", problem, "leave them out"))
            return equip.load(path)
        path = checkpoints.locate(os.fspath(checkpoint))
        experiment, task = restore(path, overrides)
        recipe = experiment.recipe
        task.application = StoredRecipe(recipe.name, recipe.plain())
        return task


class Diagnosis:
    """The page of `zoo diagnose`, and the report that it shows.

    Attributes:
        path: The page, one self-contained HTML file; the numbers are in the JSON file next to it.
        report: What was measured, run by run.
    """

    def __init__(self, path: Path, report: Report) -> None:
        self.path, self.report = path.resolve(), report

    def show(self) -> None:
        """Show the page: in a notebook below the cell, else in the browser."""
        if "ipykernel" in sys.modules:
            from IPython.display import display

            display(self)  # type: ignore[no-untyped-call]
            return
        import webbrowser

        webbrowser.open(self.path.as_uri())

    def __repr__(self) -> str:
        return f"Diagnosis({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        page = html.escape(self.path.read_text(encoding="utf-8"))
        style = "width: 100%; height: 720px; border: 1px solid #ccc"
        return f'<iframe srcdoc="{page}" style="{style}"></iframe>'
