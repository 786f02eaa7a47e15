"""`zoo predict`: classify files and folders with a trained model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zoo.reporting.numbers import as_json
from zoo.utils import escape_text

if TYPE_CHECKING:
    from zoo.config import Edit

SUMMARY = "classify files and folders with a trained model"
EXAMPLE = "zoo predict runs/vit_comrope/latest photos/ top=3"
OPTIONS = (("", "zoo.config.schema:PredictOptions"),)
JSON = True
COMPUTES = True


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


def read(known: argparse.Namespace) -> tuple[list[str], list[Edit]]:
    """Return the paths of files, and the overrides."""
    from zoo.config import check_edits
    from zoo.config.command_line import parse_overrides

    paths, changes = split_paths(known.overrides)
    # without a section, a key is one of `predict`; ~KEY removes a key of the recipe
    words = [
        word if word.startswith("~") or "." in word.partition("=")[0] else f"predict.{word}"
        for word in changes
    ]
    edits = parse_overrides(words)
    check_edits(edits)
    return paths, edits


def run(known: argparse.Namespace) -> None:
    """Predict; with --json print only the result."""
    from zoo.api.evaluation import predict

    paths, edits = read(known)
    show = None if known.json else _print
    result = predict(known.checkpoint, paths, edits, show=show, verbose=None)
    if known.json:
        print(as_json(result.to_dict()))


def split_paths(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate paths from overrides, which have a `=` or a leading `~` and name no file."""
    overrides = [
        word
        for word in words
        if ("=" in word or word.startswith("~")) and not os.path.lexists(word)
    ]
    return [word for word in words if word not in overrides], overrides


def _print(line: str) -> None:
    """Print a line with names of files and classes, which are not trusted."""
    # a terminal of another encoding would raise on names it cannot show
    encoding = sys.stdout.encoding or "utf-8"
    print(escape_text(line).encode(encoding, "backslashreplace").decode(encoding), flush=True)
