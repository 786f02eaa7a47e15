"""`zoo list`: kinds, and names and summaries of members, read without importing them."""

from __future__ import annotations

import argparse
from typing import Any

from zoo import registry
from zoo.cli.commands import Command
from zoo.cli.hints import write_command
from zoo.cli.terminal import print_text
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.packages import explain_imports
from zoo.reporting.numbers import as_json
from zoo.reporting.tables import format_table
from zoo.run.shipped import summarize_weights
from zoo.suggestions import nearest

OTHERS = (kind for kind in registry.RECIPE_KINDS if kind != "encodings")
KINDS = ("encodings", "recipes", "weights", *OTHERS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    usual = "by default, the kinds with the number of their members"
    parser.add_argument("kind", nargs="?", metavar="|".join(KINDS), help=usual)


def run(args: argparse.Namespace) -> None:
    """Print one line for each member of a kind; without a kind, one line for each kind."""
    if args.kind not in (None, *KINDS):
        hint = nearest(args.kind, KINDS)
        raise RecipeError(ConfigIssue(ARGUMENT, args.kind, "no such kind to list", hint))
    kinds = [args.kind] if args.kind else KINDS
    if args.json:
        print(as_json({kind: list_members(kind) for kind in kinds}))
    else:
        print_text(format_members(args.kind) if args.kind else count_members())


def list_members(kind: str) -> list[dict[str, Any]]:
    """Return name and summary of each member; of encodings, group, changes and facts too."""
    members: list[dict[str, Any]] = [
        {"name": name, "summary": summary} for name, summary in sorted(_summarize(kind).items())
    ]
    if kind == "encodings":
        # facts are declared by classes, whose modules import torch
        with explain_imports():
            from zoo.attention.encoding import describe_facts
            from zoo.encodings.common.chains import list_changes

        for member in members:
            cls = registry.find(kind, member["name"])
            member |= {
                "group": cls.part,
                "changes": list_changes(cls),
                "facts": describe_facts(cls),
            }
    return members


def count_members() -> str:
    """List all kinds with the number of their members and the command that names them."""
    rows = [(kind, str(len(_summarize(kind))), write_command("list", kind)) for kind in KINDS]
    return format_table(rows, left=(0, 2))


def format_members(kind: str) -> str:
    """List the members of a kind."""
    if kind == "encodings":
        return _format_groups()
    return format_table(sorted(_summarize(kind).items()), left=(0, 1))


def _format_groups() -> str:
    """List encodings under headings that say what they change."""
    groups, summaries = registry.group_encodings(), registry.summaries("encodings")
    width = max(map(len, summaries))
    blocks = [
        [f"{registry.GROUPS[group]}:", *(f"{name:{width}}  {summaries[name]}" for name in names)]
        for group, names in groups.items()
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _summarize(kind: str) -> dict[str, str]:
    """Return {name: summary}; that of a recipe is the first line of its opening comment."""
    if kind == "weights":
        return summarize_weights()
    if kind != "recipes":
        return registry.summaries(kind)
    summaries = {}
    for name, path in registry.recipe_files().items():
        line = path.read_text(encoding="utf-8").partition("\n")[0]
        summaries[name] = line.removeprefix("#").strip() if line.startswith("#") else ""
    return summaries


COMMAND = Command(
    summary="list encodings, recipes, and everything else that a recipe can use",
    example="zoo list encodings",
    add_arguments=add_arguments,
    run=run,
    prints_json=True,
)
