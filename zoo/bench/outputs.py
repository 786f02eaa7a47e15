"""The files of a result in its folder."""

from __future__ import annotations

import json
from pathlib import Path

from zoo.bench.result import Result
from zoo.bench.table import table
from zoo.config.tree import COMMAND_LINE
from zoo.errors import ConfigIssue, DataError, RecipeError
from zoo.utils.folders import check_writable

NUMBERS, TABLE, PICTURE = "bench.json", "bench.md", "bench.png"
NAMES = (NUMBERS, TABLE, PICTURE)


def write(result: Result, folder: Path) -> None:
    """Numbers, table and picture; those of a result before it are replaced."""
    from zoo.bench.plots import save_figure

    (folder / NUMBERS).write_text(json.dumps(result.plain(), indent=1) + "\n", encoding="utf-8")
    (folder / TABLE).write_text(table(result) + "\n", encoding="utf-8")
    save_figure(result, folder / PICTURE)


def others(folder: Path) -> list[str]:
    """What lies in a folder and is not of a result."""
    found = sorted(path.name for path in folder.iterdir() if path.name not in NAMES)
    if not found and (folder / NUMBERS).exists():
        try:
            Result.read(folder / NUMBERS)
        except DataError:
            return [NUMBERS]
    return found


def make_folder(to: str) -> Path:
    """The folder, made if it is not there. Raises RecipeError where it cannot be written, or holds other files."""
    folder = Path(to)
    try:
        folder.mkdir(exist_ok=True)
        check_writable(folder)
        if found := others(folder):
            raise _refuse(
                f"{folder} holds other files, {found[0]} among them", "name a folder of its own"
            )
    except OSError as error:
        raise _refuse(
            f"{folder} cannot be written, {error.strerror or error}", "name another folder"
        ) from None
    return folder


def _refuse(problem: str, remedy: str) -> RecipeError:
    return RecipeError(ConfigIssue(COMMAND_LINE, "to", problem, remedy))
