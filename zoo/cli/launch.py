"""`zoo launch`."""

from __future__ import annotations

import argparse

SUMMARY = "write the script that starts a recipe on a cluster, and continues it"
EXAMPLE = "zoo launch slurm vit_comrope nodes=4 devices=8 time=2-00 partition=gpu"
OPTIONS = (
    ("", "zoo.launch.launch:LaunchOptions"),
    ("", "zoo.launch.slurm:SlurmLauncher"),
    ("", "zoo.launch.torchrun:TorchrunLauncher"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `zoo launch`."""
    parser.add_argument("launcher", metavar="slurm|torchrun", help="what starts the processes")
    parser.add_argument("recipe", metavar="RECIPE", help="a YAML file or a registered name")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="options, and keys of the recipe"
    )


def run(known: argparse.Namespace) -> None:
    """Write or print the script."""
    from zoo.launch.launch import launch

    launch(known.launcher, known.recipe, known.overrides, known.plugin or [])
