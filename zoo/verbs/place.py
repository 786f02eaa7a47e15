"""The folder that the files of a comparison go to."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.bench.files import others
from zoo.errors import Fault, RecipeError
from zoo.recipe.tree import COMMAND_LINE


def place(to: str) -> Path:
    """The folder, made if it is not there. Raises RecipeError where it cannot be written, or holds other files."""
    folder = Path(to)
    try:
        folder.mkdir(exist_ok=True)
        trial = folder / f".bench-{os.getpid()}"
        trial.touch()
        trial.unlink()
        if found := others(folder):
            raise _fault(f"{folder} holds other files, {found[0]} among them", "name a folder of its own")
    except OSError as error:
        raise _fault(f"{folder} cannot be written, {error.strerror or error}", "name another folder") from None
    return folder


def _fault(problem: str, remedy: str) -> RecipeError:
    return RecipeError(Fault(COMMAND_LINE, "to", problem, remedy))
