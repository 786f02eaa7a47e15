"""Options of a verb on the command line, typed as the options of a recipe are, and told apart from its keys."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from zoo.bench.outputs import others
from zoo.config.compose import parse_overrides
from zoo.config.schema import Sections
from zoo.config.signature import Option, fields, options
from zoo.config.tree import COMMAND_LINE, Tree, collect_issues, suggest
from zoo.config.validate import Validator
from zoo.diagnostics.report import Report
from zoo.errors import ConfigIssue, RecipeError
from zoo.run import run_dir

PAGE = "diagnosis.html"


def destination(to: str | None, checkpoints: Sequence[Path]) -> Path:
    """The page: the one asked for, else in the run directory of a single checkpoint, or here.

    Raises RecipeError where it cannot be written, or where its numbers would take the place of another file.
    """
    untold = run_dir.holder(checkpoints[0]) / PAGE if len(checkpoints) == 1 else Path(PAGE)
    page = untold if to is None else _named(Path(to))
    try:
        _check(page, page.with_suffix(".json"))
    except OSError as error:
        raise _fault(
            f"{page} cannot be written, {error.strerror or error}", "name another page"
        ) from None
    return page


def _named(page: Path) -> Path:
    if page.suffix.lower() not in (".html", ".htm"):
        raise _fault(f"{page} is not the name of a page", "let it end with .html")
    if not page.parent.is_dir():
        raise _fault(f"there is no folder {page.parent}", "name one that exists")
    return page


def _check(page: Path, numbers: Path) -> None:
    """Raises RecipeError where something else stands there, OSError where nothing can be written."""
    if page.is_dir():
        raise _fault(f"{page} is a folder", "name a page")
    if numbers.exists() and not _is_diagnosis(numbers):
        told = (
            f"{numbers} is there already and holds no diagnosis, whose numbers would take its place"
        )
        raise _fault(told, "name another page, or remove it")
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


def _fault(problem: str, remedy: str) -> RecipeError:
    return RecipeError(ConfigIssue(COMMAND_LINE, "to", problem, remedy))


def parted(
    words: Sequence[str], classes: Sequence[type], others: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Options of the classes, and overrides of a recipe: what has a dot, names a section, or is no key=value.

    Raises RecipeError with every key that is neither; `others`, which the verb reads itself, may be what was meant.
    """
    known, sections = _schema(classes), fields(Sections)
    told = [word for word in words if _is_option(word) and word.partition("=")[0] not in sections]
    unknown = [key for key in (word.partition("=")[0] for word in told) if key not in known]
    if unknown:
        hint = [suggest(key, [*known, *sections, *others]) for key in unknown]
        pairs = zip(unknown, hint, strict=True)
        raise RecipeError(
            *(ConfigIssue(COMMAND_LINE, key, "unknown option", remedy) for key, remedy in pairs)
        )
    return told, [word for word in words if word not in told]


def typed(words: Sequence[str], classes: Sequence[type]) -> list[dict[str, Any]]:
    """The options of each class; a text is taken as it is written. Raises RecipeError with every fault."""
    faults: list[ConfigIssue] = []
    schema = _schema(classes)
    tree = Tree({}, {"": COMMAND_LINE})
    for change in parse_overrides([_quoted(word, schema) for word in words], faults):
        with collect_issues(faults):
            tree = change.apply(tree)
    validator = Validator(tree.locations)
    values = validator.validate_fields(schema, tree.data, "")
    if faults or validator.issues:
        raise RecipeError(*faults, *validator.issues)
    return [{key: values[key] for key in options(cls)} for cls in classes]


def _schema(classes: Sequence[type]) -> dict[str, Option]:
    return {key: option for cls in classes for key, option in options(cls).items()}


def _is_option(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and key.isidentifier()


def _quoted(word: str, schema: dict[str, Option]) -> str:
    """`time=30` as `time="30"` where a text is asked for; null stays nothing where that is asked for too."""
    key, _, text = word.partition("=")
    annotation = schema[key].annotation if key in schema else None
    asked = (annotation, *get_args(annotation))
    if str not in asked or not text or (text == "null" and NoneType in asked):
        return word
    return f"{key}={json.dumps(text, ensure_ascii=False)}"


def place(to: str) -> Path:
    """The folder, made if it is not there. Raises RecipeError where it cannot be written, or holds other files."""
    folder = Path(to)
    try:
        folder.mkdir(exist_ok=True)
        trial = folder / f".bench-{os.getpid()}"
        trial.touch()
        trial.unlink()
        if found := others(folder):
            raise _fault(
                f"{folder} holds other files, {found[0]} among them", "name a folder of its own"
            )
    except OSError as error:
        raise _fault(
            f"{folder} cannot be written, {error.strerror or error}", "name another folder"
        ) from None
    return folder
