"""`zoo predict`: classify files and folders with a trained model."""

from __future__ import annotations

import argparse

from zoo.reporting.numbers import as_json

SUMMARY = "classify files and folders with a trained model"
EXAMPLE = "zoo predict runs/vit_comrope/latest photos/ top=3"
OPTIONS = (("", "zoo.config.schema:PredictOptions"),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "checkpoint",
        metavar="RUN|CHECKPOINT",
        help="a run directory, RUN/last, RUN/best or a checkpoint file",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="PATH|key=value",
        help="images or texts, and the options below",
    )


def run(known: argparse.Namespace) -> None:
    """Predict; with --json print only the result."""
    from zoo.evaluation.predict import predict

    result = predict(known.checkpoint, known.overrides, quiet=known.json)
    if known.json:
        print(as_json(result))
