"""The folder of a comparison: that it can be written, and holds this comparison and no other."""

from __future__ import annotations

import logging
from pathlib import Path

from zoo.compare import status
from zoo.compare.plan import PLAN, RECIPES, ComparisonPlan, extend_plan, list_differences
from zoo.config import from_plain
from zoo.config.tree import COMMAND_LINE
from zoo.errors import ConfigIssue, DataError, RecipeError
from zoo.run import atomic_io
from zoo.utils.folders import WRITE_TEST, check_writable

log = logging.getLogger("zoo")


def prepare_folder(folder: Path) -> None:
    """Raises RecipeError where the folder cannot be written, or holds something else."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder)
        others = sorted(
            path.name
            for path in folder.iterdir()
            if not path.name.startswith((status.LOCK, WRITE_TEST))
        )
    except OSError as error:
        told = f"{folder} cannot be written, {error.strerror or error}"
        raise RecipeError(ConfigIssue(COMMAND_LINE, "to", told, "name another folder")) from None
    if others and PLAN not in others and others != [f".{PLAN}{atomic_io.WRITING}"]:
        told = f"{folder} holds other files, {others[0]} among them"
        raise RecipeError(ConfigIssue(COMMAND_LINE, "to", told, "name a folder of its own"))


def write_plan(made: ComparisonPlan, folder: Path) -> ComparisonPlan:
    """The plan with what the folder has of it already, written, and the recipes of its cells.

    Raises RecipeError where the folder has a cell that is none of the plan's.
    """
    if (folder / PLAN).exists():
        old = _read(folder)
        if not made.contains(old):
            told = f"{folder} holds another comparison: {'; '.join(list_differences(old, made)) or 'of other cells'}"
            raise RecipeError(
                ConfigIssue(
                    COMMAND_LINE, "to", told, "name another folder, or ask for those and more"
                )
            )
        made = extend_plan(old, made)
        if len(made.cells) > len(old.cells):
            log.info(
                "%s: %d cells come to its %d",
                folder,
                len(made.cells) - len(old.cells),
                len(old.cells),
            )
    made.write(folder)
    (folder / RECIPES).mkdir(exist_ok=True)
    for cell in made.cells:
        path = folder / RECIPES / f"{cell.name}.yaml"
        text = from_plain(cell.recipe, origin=str(path), name=cell.name).yaml()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return made


def _read(folder: Path) -> ComparisonPlan:
    try:
        return ComparisonPlan.read(folder)
    except DataError as error:
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, "to", str(error), "name another folder")
        ) from None
