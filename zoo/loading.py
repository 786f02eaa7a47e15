"""Recipes and checkpoints, loaded, checked and ready to use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo import recipe
from zoo.build import build_task
from zoo.check import check
from zoo.errors import CheckpointError
from zoo.recipe import Recipe
from zoo.run import checkpoints
from zoo.tasks.task import Task


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a file or a registered name, resolved and checked. Raises RecipeError with every fault."""
    loaded = recipe.load(path, overrides)
    check(loaded)
    return loaded


def load(checkpoint: str | Path, overrides: Sequence[str] = ()) -> Task:
    """The task of a checkpoint (a run directory, RUN/last, RUN/best or a file) with its weights, ready to evaluate."""
    return restore(checkpoints.locate(checkpoint), overrides)[1]


def restore(path: Path, overrides: Sequence[str] = ()) -> tuple[Recipe, Task]:
    """The recipe and the task of a checkpoint file. Raises CheckpointError where its weights do not fit the recipe.

    A checkpoint of text carries its vocabulary, and its task is made for that: no data is asked.
    """
    content = checkpoints.read(path)
    stored = recipe.from_plain(content["zoo"]["recipe"], overrides, origin=str(path), name=content["zoo"]["name"])
    samples = checkpoints.recalled(content, path)
    check(stored, samples)
    task = build_task(stored, samples)
    try:
        task.load_state_dict(content["state_dict"], strict=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:3]]
        raise CheckpointError(f"{path}: its weights are of another recipe: {' '.join(lines)[:300]}") from None
    return stored, task.eval()
