"""`zoo generate`: continue a text."""

from __future__ import annotations

import argparse

from zoo.reporting.numbers import as_json

SUMMARY = "continue a text with a language model"
EXAMPLE = 'zoo generate runs/lm_rope/latest prompt="The import statement" temperature=0.7'
OPTIONS = (("", "zoo.config.schema:GenerateOptions"),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "checkpoint",
        metavar="RUN|CHECKPOINT",
        help="a run directory, RUN/last, RUN/best or a checkpoint file",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="the options below")


def run(known: argparse.Namespace) -> None:
    """Generate; with --json print only the result."""
    from zoo.evaluation.generate import generate

    result = generate(known.checkpoint, known.overrides, quiet=known.json)
    if known.json:
        print(as_json(result))
