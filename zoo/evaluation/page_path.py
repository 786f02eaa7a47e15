"""Choose the path of the page that `zoo diagnose` writes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from zoo.config.tree import COMMAND_LINE
from zoo.diagnostics.report import Report
from zoo.errors import ConfigIssue, RecipeError
from zoo.run import run_dir
from zoo.utils.folders import check_writable

PAGE = "diagnosis.html"


def choose_page(to: str | None, checkpoints: Sequence[Path]) -> Path:
    """Return the page: `to`, else in the run directory of a single checkpoint, or here.

    Raises:
        RecipeError: It cannot be written, or the JSON beside it would replace another file.
    """
    default = Path(PAGE)
    if len(checkpoints) == 1:
        default = run_dir.find_run_dir(checkpoints[0]) / PAGE
    page = default if to is None else Path(to)
    if page.suffix.lower() not in (".html", ".htm"):
        raise _refuse(f"{page} is not the name of a page", "let it end with .html")
    if not page.parent.is_dir():
        raise _refuse(f"there is no folder {page.parent}", "name one that exists")
    numbers = page.with_suffix(".json")
    try:
        if page.is_dir():
            raise _refuse(f"{page} is a folder", "name a page")
        if numbers.exists() and not _is_diagnosis(numbers):
            problem = f"{numbers} exists and is no diagnosis; the numbers would replace it"
            raise _refuse(problem, "name another page, or remove it")
        check_writable(page.parent)
    except OSError as error:
        problem = f"{page} cannot be written, {error.strerror or error}"
        raise _refuse(problem, "name another page") from None
    return page


def _is_diagnosis(file: Path) -> bool:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, IsADirectoryError):
        return False
    keys = {field.name for field in dataclasses.fields(Report)}
    return isinstance(found, dict) and keys <= found.keys()


def _refuse(problem: str, remedy: str) -> RecipeError:
    return RecipeError(ConfigIssue(COMMAND_LINE, "to", problem, remedy))
