"""Start recipes on a cluster: `zoo launch`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo import registry
from zoo.cli.commands import Command
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.suggestions import nearest

if TYPE_CHECKING:
    from zoo.config import Edit
    from zoo.options import Choice

LAUNCH, PRINTING = "zoo.launch.launch:LaunchOptions", "zoo.cli.launch:Printing"


@dataclass(frozen=True, kw_only=True)
class Printing:
    """The destination of the script."""

    print: bool = False
    """Print the script instead of writing it to a file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "launcher", metavar="slurm|torchrun", help="the program that starts the processes"
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a YAML file or a registered name")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="options, and keys of the recipe"
    )


class LaunchWords(NamedTuple):
    """The words of the command as a recipe, its changes and options."""

    launcher: Choice
    options: dict[str, Any]
    edits: list[Edit]
    is_printed: bool


def read(args: argparse.Namespace) -> LaunchWords:
    """Read the words. Raises RecipeError where the launcher, the recipe or an option is wrong."""
    from zoo.config import load
    from zoo.config.command_line import parse_options, parse_overrides, split_words
    from zoo.options import Choice
    from zoo.options.signature import read_options

    launchers = registry.names("launchers")
    if args.launcher not in launchers:
        hint = nearest(args.launcher, launchers)
        if args.launcher in registry.recipe_files():
            hint = f"it is a recipe; the launcher comes first, one of {', '.join(launchers)}"
        raise RecipeError(ConfigIssue(ARGUMENT, args.launcher, "there is no such launcher", hint))
    sources = (LAUNCH, PRINTING, read_options("launchers", args.launcher))
    assignments, overrides = split_words(args.overrides, sources)
    options, printing, special = parse_options(assignments, sources)
    edits = parse_overrides(overrides)
    load(args.recipe, edits)
    return LaunchWords(Choice(args.launcher, special), options, edits, printing["print"])


def run(args: argparse.Namespace) -> None:
    """Write or print the script."""
    from zoo.launch.launch import LaunchOptions, launch

    launcher, options, edits, is_printed = read(args)
    result = launch(launcher, args.recipe, LaunchOptions(**options), edits, is_draft=is_printed)
    if is_printed:
        print(result.script, end="")
    else:
        result.write()


COMMAND = Command(
    summary="write the script that starts a recipe on a cluster, and continues it",
    example="zoo launch slurm vit_comrope nodes=4 devices=8 time=2-00 partition=gpu",
    add_arguments=add_arguments,
    run=run,
    read=read,
    options=(
        ("", LAUNCH),
        ("", PRINTING),
        ("", "zoo.launch.slurm:SlurmLauncher"),
        ("", "zoo.launch.torchrun:TorchrunLauncher"),
    ),
)
