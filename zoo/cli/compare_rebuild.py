"""Write the report of a finished comparison again: `zoo compare rebuild`."""

from __future__ import annotations

import argparse

from zoo.cli.bench import format_command
from zoo.cli.compare import print_result

SUMMARY = "write table, page and figures of a comparison again, without training"
EXAMPLE = "zoo compare rebuild comparisons/vit_comrope-1a2b3c4d measure=loss"
OPTIONS = (("", "zoo.comparison.compare:RebuildOptions"),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("folder", metavar="DIR", help="the output folder of a comparison")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options")


def run(known: argparse.Namespace) -> None:
    """Rebuild the files, and print the table or JSON."""
    from zoo.api.comparison import rebuild_comparison
    from zoo.comparison.compare import RebuildOptions
    from zoo.config.command_line import parse_options

    (options,) = parse_options(known.overrides, [RebuildOptions])
    command = format_command("compare", ["rebuild", known.folder, *known.overrides], known.plugin)
    rebuild_comparison(
        known.folder,
        # printed before an error of damaged cells is raised: the others have results
        show=lambda result: print_result(result, as_plain=known.json),
        command=command,
        verbose=None,
        **options,
    )
