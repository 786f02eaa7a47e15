"""Write what a repository needs of a comparison: `zoo compare pack`."""

from __future__ import annotations

import argparse
import logging

from zoo.reporting.numbers import as_json

log = logging.getLogger("zoo")

SUMMARY = "write plan, finished cells and results of a comparison into a folder to be committed"
EXAMPLE = "zoo compare pack comparisons/flipflop_rope-1a2b3c4d to=docs/records/flipflop"
OPTIONS = (("", "zoo.comparison.merge:PackOptions"),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("folder", metavar="DIR", help="the output folder of a comparison")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options")


def run(known: argparse.Namespace) -> None:
    """Pack, and print what was packed or JSON."""
    from zoo.api.comparison import pack_comparison
    from zoo.comparison.merge import PackOptions
    from zoo.config.command_line import parse_options

    (options,) = parse_options(known.overrides, [PackOptions])
    packed = pack_comparison(known.folder, verbose=None, **options)
    print(as_json(packed.to_dict()) if known.json else packed.table())
