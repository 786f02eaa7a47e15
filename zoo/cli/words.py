"""Read the words of commands: folders, changes of recipes and options, before torch is imported."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.cli.hints import write_command
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.packages import EXTRAS

if TYPE_CHECKING:
    from zoo.config import Edit
    from zoo.formats.targets import ExportOptions


class Call(NamedTuple):
    """The arguments of a call that the words of a command stand for."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]


def read_folder(args: argparse.Namespace, options: str) -> Call:
    """Return the folder of a comparison, and options."""
    from zoo.config.command_line import parse_options

    (values,) = parse_options(args.overrides, [options])
    return Call((args.folder,), values)


def read_folders(args: argparse.Namespace, options: str) -> Call:
    """Return the folders of comparisons, and options."""
    from zoo.config.command_line import parse_options

    # a folder may have "=" in its name, but then it is no identifier before it
    assignments = [
        word for word in args.overrides if word.partition("=")[0].isidentifier() and "=" in word
    ]
    (values,) = parse_options(assignments, [options])
    return Call(([word for word in args.overrides if word not in assignments],), values)


def read_edits(arguments: Sequence[str], options: str) -> tuple[list[Edit], dict[str, Any]]:
    """Return changes of a recipe, and the options of a command.

    Args:
        arguments: Words of the command line.
        options: The dataclass of the options, `module:Class`.

    Raises:
        RecipeError: A key is unknown, or the value of an option is wrong.
    """
    from zoo.config import check_edits
    from zoo.config.command_line import parse_options, parse_overrides, split_words

    settings, overrides = split_words(arguments, [options])
    (values,) = parse_options(settings, [options])
    edits = parse_overrides(overrides)
    check_edits(edits)
    return edits, values


def read_run(args: argparse.Namespace, options: str) -> Call:
    """Return a run, changes of its recipe, and options."""
    edits, values = read_edits(args.overrides, options)
    return Call((args.checkpoint, edits), values)


def read_runs(args: argparse.Namespace, options: str) -> Call:
    """Return runs, changes of their recipes, and options."""
    names, changes = split_paths(args.overrides)
    edits, values = read_edits(changes, options)
    return Call((names, edits), values)


def split_paths(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate paths from overrides, which have a `=` or a leading `~` and name no file."""
    overrides = [
        word
        for word in arguments
        if ("=" in word or word.startswith("~")) and not os.path.lexists(word)
    ]
    return [word for word in arguments if word not in overrides], overrides


def read_weights(args: argparse.Namespace, options: str) -> Call:
    """Return the folder or file of published weights, changes of the recipe, and options."""
    for word in args.overrides:
        if "=" not in word and word[:1] not in "~+-":
            message = "not an override, nor is a run directory named so"
            raise RecipeError(ConfigIssue(ARGUMENT, "", f"{word!r}: {message}", f"write to={word}"))
    edits, values = read_edits(args.overrides, options)
    return Call((args.source, edits), values)


def list_weight_packages(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that read published weights."""
    source: Path = args.source
    suffixes = {path.suffix for path in (source.iterdir() if source.is_dir() else [source])}
    # a folder with both is read as safetensors
    if ".safetensors" in suffixes:
        return ("safetensors",)
    return ("gguf",) if ".gguf" in suffixes else ()


def list_audit_packages(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that an audit needs, with those that draw its page if there is one."""
    from zoo.auditing.model_folder import is_address, is_run

    is_drawn = any(word.startswith("out=") and word.endswith(".html") for word in args.overrides)
    has_reference = any(word.startswith("reference=") for word in args.overrides)
    has_model = has_reference or not (is_address(args.folder) or is_run(args.folder))
    return (*(("transformers",) if has_model else ()), *(EXTRAS["compare"] if is_drawn else ()))


def read_export(args: argparse.Namespace, options: str) -> Call:
    """Return the run, the folder to write, changes of the recipe, and options."""
    folder, edits, export_options = _parse_export(args)
    return Call((args.checkpoint, folder), {"overrides": edits, **asdict(export_options)})


def list_export_packages(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that the format of an export needs."""
    from zoo.formats import targets

    _, _, options = _parse_export(args)
    return targets.list_packages(options)


def _parse_export(args: argparse.Namespace) -> tuple[str, list[Edit], ExportOptions]:
    from zoo.config import check_edits
    from zoo.config.command_line import parse_options, parse_overrides, split_words
    from zoo.config.tree import collect_issues
    from zoo.formats.targets import ExportOptions, check_options

    issues: list[ConfigIssue] = []
    assignments = [word for word in args.overrides if "=" in word or word.startswith("~")]
    with collect_issues(issues):
        folder = _find_folder([word for word in args.overrides if word not in assignments])
    with collect_issues(issues):
        settings, overrides = split_words(assignments, [ExportOptions])
        (values,) = parse_options(settings, [ExportOptions])
        options = ExportOptions(**values)
        check_options(options)
        edits = parse_overrides(overrides)
        check_edits(edits)
    if issues:
        raise RecipeError(*issues)
    return folder, edits, options


def _find_folder(folders: Sequence[str]) -> str:
    """Return the folder to write. Raises RecipeError unless there is one."""
    if len(folders) != 1:
        message = "there is no folder to write" if not folders else f"{len(folders)} folders"
        hint = f"name one, as in {write_command('export', 'RUN', 'to=safetensors', 'FOLDER')}"
        raise RecipeError(ConfigIssue(ARGUMENT, "", message, hint))
    return folders[0]
