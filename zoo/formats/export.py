"""Write a trained model in a format that other programs read."""

from __future__ import annotations

import importlib
import logging
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from zoo.attention.layer import find_encoded
from zoo.config import Recipe
from zoo.config.overrides import Change, Overrides, join_overrides
from zoo.errors import ARGUMENT, ConfigIssue, Message, OptionError, RecipeError, Setting
from zoo.formats.folders import new_folder
from zoo.formats.hub import check_token, push_folder
from zoo.formats.targets import OWN_MODELS, TARGETS, ExportOptions, check_options, list_packages
from zoo.packages import require
from zoo.run import checkpoint
from zoo.run.load import restore
from zoo.tasks.base import Task

log = logging.getLogger("zoo")

CPU = (
    Change("trainer.accelerator", "cpu"),
    Change("trainer.devices", 1),
    Change("trainer.num_nodes", 1),
)


@dataclass(frozen=True)
class ExportSource:
    """The trained model that is exported.

    Attributes:
        checkpoint: The file that it was read from.
        recipe: Its recipe.
        task: The task, in evaluation mode; `task.model` is the model, `task.spec` its data.
    """

    checkpoint: Path
    recipe: Recipe
    task: Task

    @property
    def is_equipped(self) -> bool:
        """True if another library computes the model, and zoo its encodings."""
        return any(part.calls_hooks for part in find_encoded(self.task.model))

    def suggest_others(self) -> Message:
        """Return which targets take any such model, as a remedy."""
        if self.is_equipped:
            return Message("use ", Setting("to", "safetensors"))
        return Message("use ", Setting("to", "hf"), " or ", Setting("to", "safetensors"))

    def metadata(self) -> dict[str, Any]:
        """Return recipe and facts of the data as plain data, enough to build the model."""
        return checkpoint.build_metadata(self.recipe, self.task.spec)


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The folder that an export wrote.

    Attributes:
        recipe: The name of the recipe.
        checkpoint: The checkpoint of the model.
        to: The format.
        folder: The folder.
        files: The files in it, sorted.
        difference: For graphs, the largest difference of outputs between the graph and the model,
            relative to 1 + |output|.
        pushed: The address of the repository that the folder was uploaded to.
    """

    recipe: str
    checkpoint: Path
    to: str
    folder: Path
    files: tuple[str, ...]
    difference: float | None = None
    pushed: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without what does not apply."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain |= {"checkpoint": str(self.checkpoint), "folder": str(self.folder)}
        plain["files"] = [*self.files]
        return {key: value for key, value in plain.items() if value is not None}


def export_model(
    run: str | os.PathLike[str], folder: Path, options: ExportOptions, overrides: Overrides = ()
) -> ExportResult:
    """Export a trained model to a new folder.

    Args:
        run: A run directory or a checkpoint.
        folder: The folder to write.
        options: The format, and where the folder is uploaded to.
        overrides: Changes of the stored recipe.

    Raises:
        RecipeError: The folder exists, or the recipe does not fit the format.
        CheckpointError: As `zoo.load` raises it.
        PackageError: A package that the format needs is missing.
    """
    check_options(options)
    path = checkpoint.locate(os.fspath(run))
    # the machine that trained the model may have had GPUs
    experiment, task = restore(path, join_overrides(CPU, overrides))
    source = ExportSource(path, experiment.recipe, task)

    if options.features:
        _check_features(source, options)
    if options.to in ("hf", "vit") and source.recipe.data.options.get("aspect") == "keep":
        message = f"to={options.to} reads images of one size"
        hint = "set it to fixed, which crops them to data.size"
        raise RecipeError(source.recipe.make_issue("data.aspect", message, hint))
    if options.to in OWN_MODELS and source.is_equipped:
        name = experiment.recipe.model.name
        message = f"to={options.to} holds models of zoo, and {name} is one of another library"
        raise RecipeError(source.recipe.make_issue("model.name", message, source.suggest_others()))

    require(*list_packages(options))
    if options.push is not None:
        check_token()
    module, _, function = TARGETS[options.to].writer.partition(":")
    write = getattr(importlib.import_module(module), function)
    with new_folder(folder) as unfinished:
        difference = write(source, options, unfinished)
    return ExportResult(
        recipe=source.recipe.name,
        checkpoint=path,
        to=options.to,
        folder=folder,
        files=tuple(
            sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        ),
        difference=difference,
        pushed=None if options.push is None else push_folder(folder, options.push),
    )


@torch.no_grad()
def _check_features(source: ExportSource, options: ExportOptions) -> None:
    """Raise RecipeError where the model has no such maps."""
    # Computed once, so that the model itself refuses layers that it does not have.
    spec = source.task.spec
    try:
        source.task.features(torch.zeros(1, *spec.shape), options.features)
    except OptionError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, "features", error.message)) from None
