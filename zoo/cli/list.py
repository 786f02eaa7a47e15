"""`zoo list`."""

from __future__ import annotations

import argparse

from zoo import registry
from zoo.errors import ConfigIssue, RecipeError

SUMMARY = "what there is, one line each"
KINDS = ("encodings", "recipes", "data", "tasks", "models")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", metavar="|".join(KINDS))


def run(known: argparse.Namespace) -> None:
    from zoo.cli.list_members import listing

    if known.kind not in (None, *KINDS):
        remedy = registry.nearest(known.kind, KINDS)
        raise RecipeError(
            ConfigIssue("command line", known.kind, "there is no such kind to list", remedy)
        )
    print(listing([known.kind] if known.kind else KINDS))
