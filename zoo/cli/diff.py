"""`zoo diff`: the keys in which two recipes differ once they are resolved."""

from __future__ import annotations

import argparse

from zoo.reporting.json import as_json

SUMMARY = "compare two recipes, runs or checkpoints key by key"
EXAMPLE = "zoo diff lm_rope lm_alibi"
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("one", metavar="RECIPE|RUN|CHECKPOINT")
    parser.add_argument("other", metavar="RECIPE|RUN|CHECKPOINT")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of both")


def run(known: argparse.Namespace) -> None:
    """Print the differences as a table or as JSON."""
    from zoo.cli.diff_recipes import compare_recipes, format_differences

    result = compare_recipes(known.one, known.other, known.overrides)
    print(as_json(result) if known.json else format_differences(result))
