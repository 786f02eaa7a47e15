"""`zoo diagnose`: a page about the attention of trained models."""

from __future__ import annotations

import argparse

from zoo.cli.predict import split_paths
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
    from zoo.api.evaluation import diagnose
    from zoo.config.command_line import parse_options, parse_overrides, split_words
    from zoo.diagnosis.diagnose import DiagnoseOptions
    from zoo.diagnosis.page.viewer_data import to_json
    from zoo.run.machine import flush_denormals

    names, changes = split_paths(known.overrides)
    own, words = split_words(changes, [DiagnoseOptions])
    (options,) = parse_options(own, [DiagnoseOptions])
    flush_denormals()
    result = diagnose(names, parse_overrides(words), verbose=None, **options)
    print(to_json(result.report) if known.json else escape_text(str(result.path)))
