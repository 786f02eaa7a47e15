"""Where `zoo diagnose` writes its page."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from zoo.config.tree import COMMAND_LINE
from zoo.diagnostics.report import Report
from zoo.errors import ConfigIssue, RecipeError
from zoo.run import run_dir

PAGE = "diagnosis.html"


def choose_page(to: str | None, checkpoints: Sequence[Path]) -> Path:
    """The page: the one asked for, else in the run directory of a single checkpoint, or here.

    Raises RecipeError where it cannot be written, or where its numbers would take the place of another file.
    """
    default = run_dir.find_run_dir(checkpoints[0]) / PAGE if len(checkpoints) == 1 else Path(PAGE)
    page = default if to is None else _check_name(Path(to))
    try:
        _check(page, page.with_suffix(".json"))
    except OSError as error:
        raise _refuse(
            f"{page} cannot be written, {error.strerror or error}", "name another page"
        ) from None
    return page


def _check_name(page: Path) -> Path:
    if page.suffix.lower() not in (".html", ".htm"):
        raise _refuse(f"{page} is not the name of a page", "let it end with .html")
    if not page.parent.is_dir():
        raise _refuse(f"there is no folder {page.parent}", "name one that exists")
    return page


def _check(page: Path, numbers: Path) -> None:
    """Raises RecipeError where something else stands there, OSError where nothing can be written."""
    if page.is_dir():
        raise _refuse(f"{page} is a folder", "name a page")
    if numbers.exists() and not _is_diagnosis(numbers):
        problem = (
            f"{numbers} is there already and holds no diagnosis, whose numbers would take its place"
        )
        raise _refuse(problem, "name another page, or remove it")
    trial = numbers.with_name(f".{numbers.name}-{os.getpid()}")  # as it is when it is written
    trial.touch()
    trial.unlink()


def _is_diagnosis(file: Path) -> bool:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, IsADirectoryError):
        return False
    return (
        isinstance(found, dict)
        and {field.name for field in dataclasses.fields(Report)} <= found.keys()
    )


def _refuse(problem: str, remedy: str) -> RecipeError:
    return RecipeError(ConfigIssue(COMMAND_LINE, "to", problem, remedy))
