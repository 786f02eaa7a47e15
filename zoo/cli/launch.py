"""Start recipes on a cluster: `zoo launch`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from zoo import registry
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.suggestions import nearest

SUMMARY = "write the script that starts a recipe on a cluster, and continues it"
EXAMPLE = "zoo launch slurm vit_comrope nodes=4 devices=8 time=2-00 partition=gpu"
OPTIONS = (
    ("", "zoo.launch.launch:LaunchOptions"),
    ("", "zoo.cli.launch:Printing"),
    ("", "zoo.launch.slurm:SlurmLauncher"),
    ("", "zoo.launch.torchrun:TorchrunLauncher"),
)


@dataclass(frozen=True, kw_only=True)
class Printing:
    """The destination of the script."""

    print: bool = False
    """Print the script instead of writing it to a file."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "launcher", metavar="slurm|torchrun", help="the program that starts the processes"
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a YAML file or a registered name")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="options, and keys of the recipe"
    )


def run(known: argparse.Namespace) -> None:
    """Write or print the script."""
    from zoo.config.command_line import parse_options, parse_overrides, split_words
    from zoo.launch.launch import LaunchOptions, launch
    from zoo.options import Choice

    launchers = registry.names("launchers")
    if known.launcher not in launchers:
        remedy = nearest(known.launcher, launchers)
        if known.launcher in registry.recipe_files():
            remedy = f"it is a recipe; the launcher comes first, one of {', '.join(launchers)}"
        raise RecipeError(
            ConfigIssue(ARGUMENT, known.launcher, "there is no such launcher", remedy)
        )
    classes = (LaunchOptions, Printing, registry.find("launchers", known.launcher))
    own, overrides = split_words(known.overrides, classes)
    options, printing, special = parse_options(own, classes)
    launcher = Choice(known.launcher, special)
    is_printed = printing["print"]
    edits = parse_overrides(overrides)
    result = launch(launcher, known.recipe, LaunchOptions(**options), edits, is_draft=is_printed)
    if is_printed:
        print(result.script, end="")
    else:
        result.write()
