"""Find recipes and fragments by name or path: in zoo, in plug-ins, or anywhere on disk."""

from __future__ import annotations

import os
import reprlib
from pathlib import Path

from zoo.config.tree import show_path, suggest
from zoo.errors import ConfigIssue, RecipeError
from zoo.registry import RECIPE_SUFFIX, list_folders, recipe_files


def find_recipe(path_or_name: str | Path) -> Path:
    """Return the file of a registered name, or of a path with or without .yaml.

    Raises:
        RecipeError: There is no such file; the message names the nearest recipe.
    """
    word = str(path_or_name)
    found = recipe_files().get(word) or _find_file(Path(word))
    if found is None:
        raise RecipeError(_explain_absence(word))
    return found


def _explain_absence(word: str) -> ConfigIssue:
    location = word if word.isprintable() and 0 < len(word) < 150 else reprlib.repr(word)
    if os.path.isdir(word):
        recipe = os.path.join(word, "recipe" + RECIPE_SUFFIX)
        nearby = suggest("", _list_yaml_files(Path(word)))
        remedy = f"did you mean {recipe}?" if os.path.isfile(recipe) else nearby
        return ConfigIssue(location, "", "a folder, not a recipe", remedy)
    if os.path.islink(word) and not os.path.exists(word):
        return ConfigIssue(
            location, "", "a symbolic link that leads to no file", "link it to a recipe"
        )
    problem = "not a regular file" if os.path.exists(word) else "there is no such recipe or file"
    known = [*recipe_files(), *_list_yaml_files(Path(word).parent)]
    return ConfigIssue(location, "", problem, suggest(word, known))


def find_extended(entry: str, file: Path) -> Path | None:
    """Return what `extends` in `file` names.

    That is a file beside it, a fragment of configs/, or a registered recipe, in this order.
    """
    for folder in (file.parent, *list_folders("configs")):
        if found := _find_file(folder / entry):
            return found
    return recipe_files().get(entry)


def list_extendable() -> tuple[str, ...]:
    """Return what can be extended from anywhere: fragments and registered recipes."""
    fragments: list[str] = []
    for folder in list_folders("configs"):
        paths = sorted(folder.rglob(f"*{RECIPE_SUFFIX}"))
        fragments += [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
    return (*fragments, *recipe_files())


def is_fragment(path: Path) -> bool:
    """Return whether a file lies below configs/, so that it cannot be run alone."""
    folders = list_folders("configs")
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)


def _find_file(path: Path) -> Path | None:
    return next(
        (found for found in (path, Path(f"{path}{RECIPE_SUFFIX}")) if os.path.isfile(found)), None
    )


def _list_yaml_files(folder: Path) -> list[str]:
    if not os.path.isdir(folder):
        return []
    return sorted(show_path(path) for path in folder.glob(f"*{RECIPE_SUFFIX}"))
