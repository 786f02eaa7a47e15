"""Load recipes and checkpoints, checked and ready to use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from zoo import config
from zoo.config import Overrides, Recipe
from zoo.config.overrides import Change, Edit, list_edits
from zoo.config.stages import resolve_stage
from zoo.data.base import Datasets
from zoo.errors import (
    CheckpointError,
    ConfigIssue,
    Message,
    OptionError,
    RecipeError,
    Setting,
    ZooError,
)
from zoo.run import checkpoint as checkpoints
from zoo.run.build import Experiment, build_model
from zoo.run.preflight import build_experiment
from zoo.run.processes import StepSize
from zoo.tasks.base import Task
from zoo.utils import escape_text
from zoo.version import __version__
from zoo.weights import check_sizes, describe_fault, limit_model

LOCATION = Change("data.path", "FOLDER")
"""Stands for the location of data that a recipe leaves to its user."""


def load_recipe(path: str | Path, overrides: Overrides = ()) -> Recipe:
    """Load a recipe, resolve it and check that its parts fit together.

    Args:
        path: A YAML file, or the name of a registered recipe.
        overrides: {key: value}, or a list of `Change` and `Removal` of `zoo.config`.

    Returns:
        The resolved recipe.

    Raises:
        RecipeError: With every issue, each located in its file.
        DataError: The data that the recipe reads is missing.
    """
    return load_experiment(path, overrides).recipe


def load_experiment(path: str | Path, overrides: Overrides = ()) -> Experiment:
    """Load a recipe as `load_recipe` does, with what the check has built."""
    return build_experiment(config.load(path, overrides))


def load_for_description(
    path: str | Path, overrides: Overrides = ()
) -> tuple[Experiment, tuple[Edit, ...]]:
    """Load a recipe to describe it, which needs no location of its data where it states the facts.

    Args:
        path: A recipe file or a registered name.
        overrides: Changes of the recipe.

    Returns:
        What the check has built, and the edit that stands for the location; none if there is one.

    Raises:
        RecipeError: As `load_recipe` raises it.
    """
    try:
        return load_experiment(path, overrides), ()
    except RecipeError as error:
        keys = [issue.key for issue in error.issues]
        if keys != [LOCATION.key] or config.load(path, overrides).data.options["path"] is not None:
            raise
        try:
            return load_experiment(path, [*list_edits(overrides), LOCATION]), (LOCATION,)
        except ZooError:
            raise error from None


def restore(
    path: Path,
    overrides: Overrides = (),
    datasets: Datasets | None = None,
    *,
    is_trained: bool = False,
) -> tuple[Experiment, Task]:
    """Restore the experiment and the task of a checkpoint file.

    The task is built for the samples whose facts the checkpoint carries, whatever data the
    overrides name.

    Args:
        path: The checkpoint file.
        overrides: Changes of the stored recipe.
        datasets: The samples of a Python program, for data `torch_dataset`.
        is_trained: Whether the task may be trained further. A test needs no optimizer.

    Raises:
        CheckpointError: The checkpoint is corrupt, unsafe, of another version of zoo, or its
            weights do not fit the recipe.
        RecipeError: An override is wrong.
    """
    content = checkpoints.read(path)
    recipe = read_recipe(content, path, overrides)
    return restore_content(content, path, recipe, datasets, is_trained=is_trained)


def restore_content(
    content: Mapping[str, Any],
    path: Path,
    recipe: Recipe,
    datasets: Datasets | None = None,
    *,
    is_trained: bool = False,
) -> tuple[Experiment, Task]:
    """Restore experiment and task as `restore` does, from a checkpoint's content.

    Args:
        content: What `checkpoint.read` returned.
        path: Where it was read, for messages.
        recipe: The stored recipe, after all changes.
        datasets: The samples of a Python program.
        is_trained: Whether the task may be trained further.
    """
    spec, weights = checkpoints.read_spec(content, path), content["state_dict"]
    check_sizes(recipe.model.options, weights, path)
    # what the check builds on the meta device is all that is built
    try:
        with limit_model(weights, path):
            experiment = build_experiment(recipe, spec, datasets, is_trained=is_trained)
    except RecipeError as error:
        if any(not _is_stored(issue, path) for issue in error.issues):
            raise
        issue = error.issues[0]
        message = f"its model cannot be built, {issue.key}: {issue.problem}"
        raise CheckpointError(escape_text(f"{path}: {message}")) from None
    faults = [
        f"{name} {fault}"
        for name, parameter in experiment.meta_model.named_parameters(prefix="model")
        if name in weights and (fault := describe_fault(weights[name]))
    ]
    if faults:
        message = "; ".join(faults[:3])
        raise CheckpointError(escape_text(f"{path}: damaged, or of a run that diverged: {message}"))
    task = experiment.build_task(is_trained=is_trained)
    try:
        task.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:3]]
        message = f"its weights are of another recipe: {' '.join(lines)[:600]}"
        raise CheckpointError(f"{path}: {message}{_describe_version(content['zoo'])}") from None
    return experiment, task.eval()


def _is_stored(issue: ConfigIssue, path: Path) -> bool:
    """Return whether an issue is one of the model that a checkpoint stores."""
    # a folder that a recipe names may have moved, which an override can say
    is_place = issue.key.endswith(".path")
    is_own = issue.key.startswith(("model", "task")) and not is_place
    return is_own and issue.origin.startswith(str(path))


def build_stored_model(metadata: Mapping[str, Any], origin: Path) -> nn.Module:
    """Build the model that a file's metadata describe, with initial weights.

    Args:
        metadata: What `checkpoint.build_metadata` returned.
        origin: The file, for messages.

    Raises:
        CheckpointError: The recipe cannot be read, or its model cannot be built.
    """
    _check_stored_recipe(metadata, origin)
    recipe = config.from_plain(metadata["recipe"], origin=str(origin), name=metadata["name"])
    try:
        return build_model(recipe, checkpoints.read_spec({"zoo": metadata}, origin))
    except OptionError as error:
        message = f"its model cannot be built: {error.key}: {error}"
        raise CheckpointError(f"{origin}: {message}") from None


def read_recipe(content: Mapping[str, Any], path: Path, overrides: Overrides = ()) -> Recipe:
    """Return the recipe that a checkpoint carries, changed by overrides.

    In place of a global batch size it has the batch size of a process of the training, since the
    checkpoint may be used by fewer processes, which have no memory for the batch of all.

    Args:
        content: What `checkpoint.read` returned.
        path: Where it was read, for messages.
        overrides: Changes of the stored recipe.

    Raises:
        CheckpointError: The stored recipe cannot be read.
        RecipeError: An override is wrong.
    """
    metadata = content["zoo"]
    origin, name = str(path), metadata["name"]
    try:
        stored = _keep_process_batch(content)
        if stored.get("stages"):
            # the weights are those of the stage in which they were saved
            whole = config.from_plain(stored, origin=origin, name=name)
            stored = resolve_stage(whole, content.get("global_step", 0)).plain()
            stored.pop("stages", None)
        return config.from_plain(stored, overrides, origin=origin, name=name)
    except RecipeError:
        # whose issue is it: the checkpoint's or an override's?
        _check_stored_recipe(metadata, path)
        raise


def _keep_process_batch(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the stored recipe with the batch size of a process in place of that of a step."""
    recipe: Mapping[str, Any] = content["zoo"]["recipe"]
    data, trainer = recipe.get("data"), recipe.get("trainer")
    # a damaged recipe is refused where it is read
    if not isinstance(data, Mapping) or not isinstance(trainer, Mapping):
        return recipe
    if not isinstance(data.get("global_batch_size"), int):
        return recipe
    # converted weights have no states of processes
    states, devices = content.get("rng_states"), trainer.get("devices")
    planned = (devices if isinstance(devices, int) else 1) * trainer.get("num_nodes", 1)
    step = StepSize.read(recipe, len(states) if states else planned)
    data_options = {word: value for word, value in data.items() if word != "global_batch_size"}
    return {**recipe, "data": {**data_options, "batch_size": max(step.batch or 1, 1)}}


def _check_stored_recipe(metadata: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError where the stored recipe cannot be read, whatever overrides say."""
    try:
        config.from_plain(metadata["recipe"], (), origin=str(path), name=metadata["name"])
    except RecipeError as error:
        issue = error.issues[0]
        message = f"its recipe cannot be read, {issue.key}: {issue.problem}"
        version = _describe_version(metadata)
        hint = Message("if that comes from a plug-in, begin with ", Setting("plugin", "MODULE"))
        raise CheckpointError(f"{path}: {message}{version}; ", hint) from None


def _describe_version(metadata: Mapping[str, Any]) -> str:
    version = metadata.get("version")
    return "" if version == __version__ else f"; written by zoo {version}, this is {__version__}"
