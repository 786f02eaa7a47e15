"""Write the report of a finished comparison again: `zoo compare rebuild`."""

from __future__ import annotations

import argparse
from typing import Any

from zoo.cli.bench import format_command
from zoo.cli.compare import print_result
from zoo.packages import EXTRAS

SUMMARY = "write table, page and figures of a comparison again, without training"
EXAMPLE = "zoo compare rebuild comparisons/vit_comrope-1a2b3c4d measure=loss"
REBUILD = "zoo.comparison.compare:RebuildOptions"
OPTIONS = (("", REBUILD),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("folder", metavar="DIR", help="the output folder of a comparison")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options")


def read(known: argparse.Namespace) -> dict[str, Any]:
    """Return the options."""
    from zoo.config.command_line import parse_options

    (options,) = parse_options(known.overrides, [REBUILD])
    return options


def list_packages(known: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that draw the figures."""
    return EXTRAS["compare"]


def run(known: argparse.Namespace) -> None:
    """Rebuild the files, and print the table or JSON."""
    from zoo.api.comparison import rebuild_comparison

    command = format_command("compare", ["rebuild", known.folder, *known.overrides], known.plugin)
    rebuild_comparison(
        known.folder,
        # printed before an error of damaged cells is raised: the others have results
        show=lambda result: print_result(result, as_plain=known.json),
        command=command,
        verbose=None,
        **read(known),
    )
