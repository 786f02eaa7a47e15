"""`zoo eval`: evaluate a checkpoint, also beyond the training length or resolution."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from zoo.cli.commands import Command
from zoo.cli.main import is_secondary_process
from zoo.cli.words import read_edits
from zoo.errors import ZooError
from zoo.reporting.numbers import as_json

if TYPE_CHECKING:
    from zoo.config import Edit

TARGET = "zoo.evaluation.evaluate:EvaluationTarget"


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
        metavar="key=value",
        help="the options below, and keys of the stored recipe",
    )


def read(args: argparse.Namespace) -> tuple[list[Edit], dict[str, Any]]:
    """Return the overrides, and the options of the command."""
    # most evaluations take the recipe as it is, and have no words to parse
    if not args.overrides:
        return [], {}
    return read_edits(args.overrides, TARGET)


def run(args: argparse.Namespace) -> None:
    """Evaluate, and print a table or JSON."""
    from zoo.api.evaluation import evaluate

    edits, options = read(args)
    result = evaluate(args.checkpoint, edits, verbose=None, **options)
    # one of several processes reports the result
    if is_secondary_process():
        return
    if args.json:
        print(as_json(result.to_dict()))
    else:
        from zoo.evaluation.results import table

        print(table(result))
    if result.problem:
        # after the result, which is nowhere else
        raise ZooError(result.problem)


COMMAND = Command(
    summary="evaluate a checkpoint, also beyond the training length or resolution",
    example="zoo eval runs/lm_rope/latest 'evaluate.lengths=[1x,2x,4x]'",
    add_arguments=add_arguments,
    run=run,
    read=read,
    options=(("evaluate.", "zoo.config.schema:EvaluateOptions"), ("", TARGET)),
    prints_json=True,
    computes=True,
)
