"""`zoo compare`."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.reporting.numbers import as_json
from zoo.utils import die_with_parent, end_with_parent

log = logging.getLogger("zoo")

SUMMARY = "train a recipe with several encodings, or values of other keys, and rank them"
EXAMPLE = "zoo compare vit_comrope encodings=[none,learned,rope_axial] seeds=3 to=comparison"
OPTIONS = (
    ("", "zoo.comparison.request:CompareOptions"),
    ("", "zoo.launch.slurm_executor:SlurmExecutor"),
)
JSON = True
RED, RESET = "\033[1;31m", "\033[0m"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `zoo compare`."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="encodings=[rope,alibi] and vary.KEY=[VALUE,...] say what varies; "
        "options, and keys of the recipe",
    )
    # how a comparison starts its own processes
    parser.add_argument("--cell", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--tied", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--fork-server", action="store_true", help=argparse.SUPPRESS)


def _rank(words: Sequence[str], as_plain: bool) -> None:
    """Rank over the tasks of several comparisons, and print the table or JSON."""
    from zoo.comparison.overall import format_ranking, run_ranking
    from zoo.comparison.request import RankOptions
    from zoo.config.command_line import parse_options

    options = RankOptions(**parse_options(words, [RankOptions])[0])
    ranking, folder = run_ranking(options.rank, options.to)
    print(as_json(asdict(ranking)) if as_plain else format_ranking(ranking))
    log.info("written: %s", folder)


def redden_warnings(text: str) -> str:
    """Return the text for a terminal: its first bold line, a warning, is red unless NO_COLOR."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return re.sub(r"^\*\*(.*)\*\*$", f"{RED}\\1{RESET}", text, count=1, flags=re.MULTILINE)


def run(known: argparse.Namespace) -> None:
    """Run a comparison, or rebuild the files of a finished one, and print the table or JSON."""
    if known.fork_server:
        # before the imports, which take long
        if not die_with_parent():
            return
        from zoo.launch.fork_server import serve

        # from here on this is the process of a cell, unless there are no more
        known.cell, known.tied = serve(), True
        if known.cell is None:
            return
    if known.tied:
        end_with_parent()

    from zoo.comparison.outputs import describe_comparison
    from zoo.comparison.runner import compare, rebuild, run_cell
    from zoo.comparison.text import format_comparison

    if known.cell is not None:
        run_cell(known.cell)
        return
    if known.recipe is None:
        remedy = "write zoo compare RECIPE encodings=[...], or zoo compare rebuild=FOLDER"
        raise RecipeError(ConfigIssue(ARGUMENT, "", "no recipe", remedy))

    problem = None
    words = [known.recipe, *known.overrides]
    if any(word.startswith("rank=") for word in words):
        _rank(words, known.json)
        return
    if any(word.startswith("rebuild=") for word in words):
        comparison = rebuild(words)
    else:
        comparison, _, problem = compare(known.recipe, known.overrides, known.plugin or [])
    if known.json:
        print(as_json(describe_comparison(comparison)))
    else:
        print(redden_warnings(format_comparison(comparison)))
    if problem is not None:
        raise problem
