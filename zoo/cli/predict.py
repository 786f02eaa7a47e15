"""`zoo predict`: classify files and folders with a trained model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.commands import Command
from zoo.cli.words import split_paths
from zoo.reporting.numbers import as_json
from zoo.utils import escape_text

if TYPE_CHECKING:
    from zoo.config import Edit


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def read(args: argparse.Namespace) -> tuple[list[str], list[Edit]]:
    """Return the paths of files, and the overrides."""
    from zoo.config import check_edits
    from zoo.config.command_line import parse_overrides

    paths, changes = split_paths(args.overrides)
    # without a section, a key is one of `predict`; ~KEY removes a key of the recipe
    assignments = [
        word if word.startswith("~") or "." in word.partition("=")[0] else f"predict.{word}"
        for word in changes
    ]
    edits = parse_overrides(assignments)
    check_edits(edits)
    return paths, edits


def run(args: argparse.Namespace) -> None:
    """Predict; with --json print only the result."""
    from zoo.api.guard import suggest_smaller
    from zoo.evaluation.predict import predict

    paths, edits = read(args)
    # each file once it is done: `zoo.predict` returns when all are
    show = None if args.json else _print
    with suggest_smaller("predict"):
        result = predict(args.checkpoint, [Path(path) for path in paths], edits, show)
    if args.json:
        print(as_json(result.to_dict()))


def _print(line: str) -> None:
    """Print a line with names of files and classes, which are not trusted."""
    # a terminal of another encoding would raise on names it cannot show
    encoding = sys.stdout.encoding or "utf-8"
    print(escape_text(line).encode(encoding, "backslashreplace").decode(encoding), flush=True)


COMMAND = Command(
    summary="classify files and folders with a trained model",
    example="zoo predict runs/vit_comrope/latest photos/ top=3",
    add_arguments=add_arguments,
    run=run,
    read=read,
    options=(("", "zoo.config.schema:PredictOptions"),),
    prints_json=True,
    computes=True,
)
