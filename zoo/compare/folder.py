"""The folder of a comparison: that it can be written, and holds this comparison and no other."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from zoo.compare import state
from zoo.compare.plan import PLAN, RECIPES, Plan, differences
from zoo.errors import DataError, Fault, RecipeError
from zoo.recipe import from_plain
from zoo.recipe.tree import COMMAND_LINE
from zoo.run import storage

TRIAL = ".compare-"  # how a file begins that tries whether a folder can be written


def place(folder: Path) -> None:
    """Raises RecipeError where the folder cannot be written, or holds something else."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / f"{TRIAL}{os.getpid()}"
        trial.touch()
        trial.unlink()
        others = sorted(path.name for path in folder.iterdir() if not path.name.startswith((state.LOCK, TRIAL)))
    except OSError as error:
        told = f"{folder} cannot be written, {error.strerror or error}"
        raise RecipeError(Fault(COMMAND_LINE, "to", told, "name another folder")) from None
    if others and PLAN not in others and others != [f".{PLAN}{storage.WRITING}"]:
        told = f"{folder} holds other files, {others[0]} among them"
        raise RecipeError(Fault(COMMAND_LINE, "to", told, "name a folder of its own"))


def settled(made: Plan, folder: Path) -> Plan:
    """The plan that the folder has, or this one, and the recipes of its cells. Raises RecipeError where it has another."""
    if (folder / PLAN).exists():
        old = _read(folder)
        if old.hash != made.hash or old.seeds != made.seeds:
            told = f"{folder} holds another comparison: {'; '.join(differences(old, made)) or 'of other cells'}"
            raise RecipeError(Fault(COMMAND_LINE, "to", told, "name another folder"))
        made = replace(old, measure=made.measure, better=made.better)
    else:
        made.write(folder)
    (folder / RECIPES).mkdir(exist_ok=True)
    for cell in made.cells:
        path = folder / RECIPES / f"{cell.name}.yaml"
        text = from_plain(cell.recipe, origin=str(path), name=cell.name).yaml()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return made


def _read(folder: Path) -> Plan:
    try:
        return Plan.read(folder)
    except DataError as error:
        raise RecipeError(Fault(COMMAND_LINE, "to", str(error), "name another folder")) from None
