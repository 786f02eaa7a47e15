"""`zoo list`: names and summaries of members, read without importing them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from zoo import registry
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.reporting.tables import format_table
from zoo.suggestions import nearest

SUMMARY = "list encodings, recipes, and everything else that a recipe can use"
EXAMPLE = "zoo list encodings"
KINDS = ("encodings", "recipes", *(kind for kind in registry.RECIPE_KINDS if kind != "encodings"))


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("kind", nargs="?", metavar="|".join(KINDS), help="by default all kinds")


def run(known: argparse.Namespace) -> None:
    """Print one line for each member."""
    if known.kind not in (None, *KINDS):
        hint = nearest(known.kind, KINDS)
        raise RecipeError(ConfigIssue(ARGUMENT, known.kind, "no such kind to list", hint))
    print(format_members([known.kind] if known.kind else KINDS))


def format_members(kinds: Sequence[str]) -> str:
    """List the members of each kind, under a heading if there are several kinds."""
    blocks = []
    for kind in kinds:
        entries = _summarize_recipes() if kind == "recipes" else registry.summaries(kind)
        indent = "  " if len(kinds) > 1 else ""
        rows = [(f"{indent}{name}", summary) for name, summary in sorted(entries.items())]
        heading = f"{kind}\n" if len(kinds) > 1 else ""
        blocks.append(heading + format_table(rows, left=(0, 1)))
    return "\n\n".join(blocks)


def _summarize_recipes() -> dict[str, str]:
    """Return the first line of each recipe's opening comment."""
    found = {}
    for name, path in registry.recipe_files().items():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        found[name] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return found
