"""Rank variants over several comparisons: `zoo compare rank`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Any

from zoo.cli.bench import format_command
from zoo.packages import EXTRAS
from zoo.reporting.numbers import as_json

log = logging.getLogger("zoo")

SUMMARY = "rank the variants that several comparisons have, each of which is a task"
EXAMPLE = "zoo compare rank comparisons/flipflop comparisons/recall to=overall"
RANK = "zoo.comparison.overall:RankOptions"
OPTIONS = (("", RANK),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="DIR|key=value",
        help="output folders of comparisons, or their files results.json; and options",
    )


def split_words(words: Sequence[str], options: str) -> tuple[list[str], dict[str, Any]]:
    """Return the folders among words, and the options that the others set.

    Args:
        words: Words of the command line.
        options: The dataclass of the options, `module:Class`.

    Raises:
        RecipeError: An option is wrong.
    """
    from zoo.config.command_line import parse_options

    # a folder may have "=" in its name, but then it is no identifier before it
    own = [word for word in words if word.partition("=")[0].isidentifier() and "=" in word]
    (given,) = parse_options(own, [options])
    return [word for word in words if word not in own], given


def read(known: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """Return the folders and the options."""
    return split_words(known.overrides, RANK)


def list_packages(known: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that draw the figures."""
    return EXTRAS["compare"]


def run(known: argparse.Namespace) -> None:
    """Rank, and print the table or JSON."""
    from zoo.api.comparison import rank_comparisons

    folders, options = read(known)
    command = format_command("compare", ["rank", *known.overrides], known.plugin)
    result = rank_comparisons(folders, command=command, verbose=None, **options)
    print(as_json(result.to_dict()) if known.json else result.table())
    log.info("written: %s", result.path)
