"""Where recipes and fragments lie: in zoo and in plug-ins, or at a path."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterator
from pathlib import Path

from zoo.config.source import shown
from zoo.config.words import nearest
from zoo.errors import ConfigIssue, RecipeError
from zoo.registry import roots

SUFFIX = ".yaml"


def recipe_files() -> dict[str, Path]:
    """{name: file} of every registered recipe, zoo's before those of plug-ins."""
    found: dict[str, Path] = {}
    for folder in _folders("recipes"):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            found.setdefault(path.stem, path)
    return found


def find_recipe(path_or_name: str | Path) -> Path:
    """The file of a registered name, or at a path (with or without .yaml). Raises RecipeError if there is none."""
    word = str(path_or_name)
    if found := recipe_files().get(word):
        return found
    if found := _file(Path(word)):
        return found
    raise RecipeError(_no_recipe(word))


def _no_recipe(word: str) -> ConfigIssue:
    place = word if word.isprintable() and 0 < len(word) < 150 else reprlib.repr(word)
    if os.path.isdir(word):
        run = os.path.join(word, "recipe" + SUFFIX)
        remedy = (
            f"did you mean {run}?" if os.path.isfile(run) else nearest("", _yaml_files(Path(word)))
        )
        return ConfigIssue(place, "", "a folder, not a recipe", remedy)
    problem = "not a regular file" if os.path.exists(word) else "there is no such recipe or file"
    return ConfigIssue(
        place, "", problem, nearest(word, [*recipe_files(), *_yaml_files(Path(word).parent)])
    )


def find_extended(entry: str, file: Path) -> Path | None:
    """What an entry of `extends` in `file` names: a file beside it, a fragment of configs/, or a registered recipe."""
    for folder in (file.parent, *_folders("configs")):
        if found := _file(folder / entry):
            return found
    return recipe_files().get(entry)


def extendable() -> tuple[str, ...]:
    """What can be extended from anywhere: fragments and registered recipes."""
    paths = [
        path.relative_to(folder)
        for folder in _folders("configs")
        for path in sorted(folder.rglob(f"*{SUFFIX}"))
    ]
    return (*(path.with_suffix("").as_posix() for path in paths), *recipe_files())


def is_fragment(path: Path) -> bool:
    """Whether a file lies below configs/, so that it cannot be run alone."""
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in _folders("configs"))


def _folders(kind: str) -> Iterator[Path]:
    """`kind` in each package; in a checkout, zoo's lies beside the package rather than in it."""
    for package, root in roots().items():
        if (root / kind).is_dir():
            yield root / kind
        elif package == "zoo":
            yield root.parent / kind


def _file(path: Path) -> Path | None:
    return next((found for found in (path, Path(f"{path}{SUFFIX}")) if os.path.isfile(found)), None)


def _yaml_files(folder: Path) -> list[str]:
    return (
        sorted(shown(path) for path in folder.glob(f"*{SUFFIX}")) if os.path.isdir(folder) else []
    )
