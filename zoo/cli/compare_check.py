"""Train one committed cell again and compare its digits: `zoo compare check`."""

from __future__ import annotations

import argparse
from typing import Any

from zoo.errors import ZooError
from zoo.reporting.numbers import as_json

SUMMARY = "train one finished cell again, chosen by the commit, and compare it to the last digit"
EXAMPLE = "zoo compare check docs/records/flipflop"
CHECK = "zoo.comparison.spot_check:CheckOptions"
OPTIONS = (("", CHECK),)
JSON = True
COMPUTES = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("folder", metavar="DIR", help="the output folder of a comparison")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options")


def read(known: argparse.Namespace) -> dict[str, Any]:
    """Return the options."""
    from zoo.config.command_line import parse_options

    (options,) = parse_options(known.overrides, [CHECK])
    return options


def run(known: argparse.Namespace) -> None:
    """Check, print the result or JSON, and fail if a digit differs."""
    from zoo.api.comparison import check_comparison

    result = check_comparison(known.folder, verbose=None, **read(known))
    print(as_json(result.to_dict()) if known.json else result.table())
    if not result.is_equal:
        raise ZooError(f"{result.path}: {len(result.differences)} fields are not equal")
