"""Recipes and checkpoints, loaded, checked and ready to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo import __version__, config
from zoo.config import Recipe
from zoo.errors import CheckpointError, RecipeError
from zoo.run import checkpoint as checkpoints
from zoo.run.build import build_task
from zoo.run.preflight import check
from zoo.tasks.base import Task


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a file or a registered name, resolved and checked. Raises RecipeError with every fault."""
    loaded = config.load(path, overrides)
    check(loaded)
    return loaded


def load(checkpoint: str | Path, overrides: Sequence[str] = ()) -> Task:
    """The task of a checkpoint (a run directory, RUN/last, RUN/best or a file) with its weights, ready to evaluate."""
    return restore(checkpoints.locate(checkpoint), overrides)[1]


def restore(path: Path, overrides: Sequence[str] = ()) -> tuple[Recipe, Task]:
    """The recipe and the task of a checkpoint file.

    Raises CheckpointError where its weights do not fit the recipe, or another version wrote what this one cannot read.

    A checkpoint carries the facts of its data, and its task is made for these, whatever data it is asked about.
    """
    content = checkpoints.read(path)
    stored = _recipe(content["zoo"], overrides, path)
    samples = checkpoints.recalled(content, path)
    check(stored, samples)
    task = build_task(stored, samples)
    try:
        task.load_state_dict(content["state_dict"], strict=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:3]]
        other = (
            "" if content["zoo"].get("version") == __version__ else f"; {_versions(content['zoo'])}"
        )
        raise CheckpointError(
            f"{path}: its weights are of another recipe: {' '.join(lines)[:300]}{other}"
        ) from None
    return stored, task.eval()


def _recipe(about: Mapping[str, Any], overrides: Sequence[str], path: Path) -> Recipe:
    """The recipe that a checkpoint carries, changed by overrides."""

    def changed(by: Sequence[str]) -> Recipe:
        return config.from_plain(about["recipe"], by, origin=str(path), name=about["name"])

    try:
        return changed(overrides)
    except RecipeError:
        _check(lambda: changed(()), about, path)
        raise


def _check(unchanged: Callable[[], Recipe], about: Mapping[str, Any], path: Path) -> None:
    """Raises CheckpointError where the recipe as it is carried cannot be read, whatever overrides say."""
    try:
        unchanged()
    except RecipeError as error:
        fault = error.issues[0]
        other = "" if about.get("version") == __version__ else f"{_versions(about)}; "
        told = f"{path}: its recipe cannot be read, {fault.key}: {fault.problem}; {other}"
        raise CheckpointError(f"{told}if that comes from a plug-in, add --plugin MODULE") from None


def _versions(about: Mapping[str, Any]) -> str:
    return f"it is of zoo {about.get('version')}, this is {__version__}"
