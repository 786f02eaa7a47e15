"""`zoo diagnose`: a page about the attention of trained models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from zoo.cli.predict import split_paths
from zoo.packages import EXTRAS
from zoo.utils import escape_text

if TYPE_CHECKING:
    from zoo.config import Edit

SUMMARY = "write a page about the attention of trained models"
EXAMPLE = "zoo diagnose runs/vit_comrope/latest samples=8"
DIAGNOSE = "zoo.diagnosis.diagnose:DiagnoseOptions"
OPTIONS = (("", DIAGNOSE),)
JSON = True
COMPUTES = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="RUN|key=value",
        help="runs or checkpoints, and the options below",
    )


def read(known: argparse.Namespace) -> tuple[list[str], list[Edit], dict[str, Any]]:
    """Return the runs, the overrides and the options."""
    from zoo.config import check_edits
    from zoo.config.command_line import parse_options, parse_overrides, split_words

    names, changes = split_paths(known.overrides)
    own, words = split_words(changes, [DIAGNOSE])
    (options,) = parse_options(own, [DIAGNOSE])
    edits = parse_overrides(words)
    check_edits(edits)
    return names, edits, options


def list_packages(known: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that draw the page."""
    return EXTRAS["compare"]


def run(known: argparse.Namespace) -> None:
    """Write the page, and print its path or its numbers."""
    from zoo.api.evaluation import diagnose

    names, edits, options = read(known)
    result = diagnose(names, edits, verbose=None, **options)
    if known.json:
        # not before: its module draws
        from zoo.diagnosis.page.viewer_data import to_json

        print(to_json(result.report))
    else:
        print(escape_text(str(result.path)))
