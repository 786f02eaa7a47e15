"""`zoo show`."""

from __future__ import annotations

import argparse

SUMMARY = "a recipe resolved, or an encoding explained"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="RECIPE|ENCODING")
    parser.add_argument("overrides", nargs="*", metavar="key=value")


def run(known: argparse.Namespace) -> None:
    from zoo.cli.show_recipe import show

    print(show(known.what, known.overrides))
