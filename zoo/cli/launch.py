"""`zoo launch`."""

from __future__ import annotations

import argparse

SUMMARY = "the script that starts a recipe on a cluster, and goes on with it"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", metavar="slurm|torchrun")
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="nodes=4 devices=8 time=... and keys of RECIPE",
    )
    parser.add_argument(
        "--print", action="store_true", help="print the script instead of writing it to a file"
    )


def run(known: argparse.Namespace) -> None:
    from zoo.launch.launch import launch

    launch(known.engine, known.recipe, known.overrides, known.plugin or [], known.print)
