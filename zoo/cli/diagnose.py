"""`zoo diagnose`: a page about the attention of trained models."""

from __future__ import annotations

import argparse

from zoo.utils import escape_text

SUMMARY = "write a page about the attention of trained models"
EXAMPLE = "zoo diagnose runs/vit_comrope/latest samples=8"
OPTIONS = (("", "zoo.diagnosis.diagnose:DiagnoseOptions"),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="RUN|key=value",
        help="runs or checkpoints, and the options below",
    )


def run(known: argparse.Namespace) -> None:
    """Write the page, and print its path or its numbers."""
    from zoo.diagnosis.diagnose import diagnose

    path = diagnose(known.overrides)
    print(
        path.with_suffix(".json").read_text(encoding="utf-8")
        if known.json
        else escape_text(str(path))
    )
