"""Join the finished cells of several comparisons: `zoo compare merge`."""

from __future__ import annotations

import argparse
from typing import Any

from zoo.cli.compare import print_result
from zoo.cli.compare_rank import split_words
from zoo.packages import EXTRAS

SUMMARY = "join the finished cells of comparisons of one recipe, trained on several machines"
EXAMPLE = "zoo compare merge here/flipflop there/flipflop to=docs/records/flipflop"
MERGE = "zoo.comparison.merge:PackOptions"
OPTIONS = (("", MERGE),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="DIR|key=value",
        help="output folders of comparisons; and options",
    )


def read(known: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """Return the folders and the options."""
    return split_words(known.overrides, MERGE)


def list_packages(known: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that draw the figures."""
    return EXTRAS["compare"]


def run(known: argparse.Namespace) -> None:
    """Merge, and print the table or JSON."""
    from zoo.api.comparison import merge_comparisons

    folders, options = read(known)
    merge_comparisons(
        folders,
        # printed before an error of refused cells is raised: the others have results
        show=lambda result: print_result(result, as_plain=known.json),
        verbose=None,
        **options,
    )
