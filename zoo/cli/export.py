"""Export trained models to other formats: `zoo export`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.reporting.numbers import as_json
from zoo.utils import escape_text

SUMMARY = "export a trained model to a format that other programs read"
EXAMPLE = "zoo export runs/lm_rope/latest to=hf FOLDER"
OPTIONS = (("", "zoo.formats.export:ExportOptions"),)
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


def run(known: argparse.Namespace) -> None:
    """Write the folder and print its files."""
    from zoo.api.tools import export
    from zoo.config.command_line import parse_options, parse_overrides, split_words
    from zoo.formats.export import ExportOptions

    folder, rest = _split_folder(known.overrides)
    own, overrides = split_words(rest, [ExportOptions])
    (options,) = parse_options(own, [ExportOptions])
    result = export(
        known.checkpoint, folder, overrides=parse_overrides(overrides), verbose=None, **options
    )
    files = ", ".join(result.files)
    print(as_json(result.to_dict()) if known.json else escape_text(f"{folder}: {files}"))


def _split_folder(words: Sequence[str]) -> tuple[str, list[str]]:
    """Split the one word that is a folder from those that are options."""
    rest = [word for word in words if "=" in word or word.startswith("~")]
    folders = [word for word in words if word not in rest]
    if len(folders) != 1:
        problem = "there is no folder to write" if not folders else f"{len(folders)} folders"
        remedy = "name one, as in zoo export RUN to=safetensors FOLDER"
        raise RecipeError(ConfigIssue(ARGUMENT, "", problem, remedy))
    return folders[0], rest
