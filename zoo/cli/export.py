"""Export trained models to other formats: `zoo export`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from zoo.cli.hints import write_command
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.reporting.numbers import as_json
from zoo.utils import escape_text

if TYPE_CHECKING:
    from zoo.config import Edit
    from zoo.formats.targets import ExportOptions

SUMMARY = "export a trained model to a format that other programs read"
EXAMPLE = "zoo export runs/lm_rope/latest to=hf FOLDER"
OPTIONS = (("", "zoo.formats.targets:ExportOptions"),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "checkpoint",
        metavar="RUN|CHECKPOINT",
        help="a run directory, RUN/last, RUN/best or a checkpoint file",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="FOLDER|key=value",
        help="the folder to write, the options below, and keys of the recipe",
    )


def read(known: argparse.Namespace) -> tuple[str, list[Edit], ExportOptions]:
    """Return the folder, the overrides and the options. Raises RecipeError if one is wrong."""
    from zoo.config import check_edits
    from zoo.config.command_line import parse_options, parse_overrides, split_words
    from zoo.config.tree import collect_issues
    from zoo.formats.targets import ExportOptions, check_options

    issues: list[ConfigIssue] = []
    rest = [word for word in known.overrides if "=" in word or word.startswith("~")]
    with collect_issues(issues):
        folder = _find_folder([word for word in known.overrides if word not in rest])
    with collect_issues(issues):
        own, words = split_words(rest, [ExportOptions])
        (given,) = parse_options(own, [ExportOptions])
        options = ExportOptions(**given)
        check_options(options)
        edits = parse_overrides(words)
        check_edits(edits)
    if issues:
        raise RecipeError(*issues)
    return folder, edits, options


def list_packages(known: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that the format needs."""
    from zoo.formats import targets

    _, _, options = read(known)
    return targets.list_packages(options)


def run(known: argparse.Namespace) -> None:
    """Write the folder and print its files."""
    from zoo.api.tools import export

    folder, edits, options = read(known)
    result = export(known.checkpoint, folder, overrides=edits, verbose=None, **asdict(options))
    files = ", ".join(result.files)
    print(as_json(result.to_dict()) if known.json else escape_text(f"{folder}: {files}"))


def _find_folder(folders: Sequence[str]) -> str:
    """Return the folder to write. Raises RecipeError unless there is one."""
    if len(folders) != 1:
        problem = "there is no folder to write" if not folders else f"{len(folders)} folders"
        remedy = f"name one, as in {write_command('export', 'RUN', 'to=safetensors', 'FOLDER')}"
        raise RecipeError(ConfigIssue(ARGUMENT, "", problem, remedy))
    return folders[0]
