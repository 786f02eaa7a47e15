"""Find the files of suites by their names.

This module imports no torch: a wrong name is refused before that takes time.
"""

from __future__ import annotations

import os
from pathlib import Path

from zoo.errors import ARGUMENT, ConfigIssue, Message, RecipeError
from zoo.registry import RECIPE_SUFFIX, SUITES, describe_conflict, list_folders
from zoo.suggestions import nearest
from zoo.utils import describe_absence


def list_suites() -> dict[str, Path]:
    """Return {name: file} of the suites of zoo and of plug-ins.

    Raises:
        RecipeError: Several files have the same name.
    """
    files: dict[str, Path] = {}
    for folder in list_folders("configs"):
        for path in sorted((folder / SUITES).glob(f"*{RECIPE_SUFFIX}")):
            if path.stem in files:
                paths = [files[path.stem], path]
                raise RecipeError(describe_conflict(f"suite {path.stem}", paths))
            files[path.stem] = path
    return files


def find_suite(word: str) -> Path:
    """Return the file of a suite.

    Args:
        word: The name of a suite, or a file.

    Raises:
        RecipeError: There is no such suite; the message names those there are.
    """
    suites = list_suites()
    if word in suites:
        return suites[word]
    if os.path.isfile(word):
        return Path(word)
    hint: str | Message = nearest(word, suites)
    # a word with a suffix or a folder is meant as a file, for which no name is near
    is_file = word.endswith(RECIPE_SUFFIX) or os.sep in word
    message = describe_absence(word, "file") if is_file else f"there is no suite {word!r}"
    if not is_file:
        hint = Message(hint, "; suites are ", ", ".join(sorted(suites)), ", or a file of yours")
    raise RecipeError(ConfigIssue(ARGUMENT, "suite", message, hint))
