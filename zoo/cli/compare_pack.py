"""Write what a repository needs of a comparison: `zoo compare pack`."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from zoo.reporting.numbers import as_json

log = logging.getLogger("zoo")

SUMMARY = "write plan, finished cells and results of a comparison into a folder to be committed"
EXAMPLE = "zoo compare pack comparisons/flipflop_rope-1a2b3c4d to=docs/records/flipflop"
PACK = "zoo.comparison.merge:PackOptions"
OPTIONS = (("", PACK),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("folder", metavar="DIR", help="the output folder of a comparison")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options")


def read(known: argparse.Namespace) -> dict[str, Any]:
    """Return the options."""
    from zoo.config.command_line import parse_options

    (options,) = parse_options(known.overrides, [PACK])
    return options


def list_packages(known: argparse.Namespace) -> tuple[str, ...]:
    """Return the package that computes the intervals; figures are not packed."""
    return ("scipy",)


def run(known: argparse.Namespace) -> None:
    """Pack, and print what was packed or JSON."""
    from zoo.api.comparison import pack_comparison

    packed = pack_comparison(known.folder, verbose=None, **read(known))
    print(as_json(packed.to_dict()) if known.json else packed.table())
