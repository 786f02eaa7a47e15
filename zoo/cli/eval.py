"""`zoo eval`: evaluate a checkpoint, also beyond the training length or resolution."""

from __future__ import annotations

import argparse

from zoo.cli.main import is_secondary_process
from zoo.reporting.numbers import as_json

SUMMARY = "evaluate a checkpoint, also beyond the training length or resolution"
EXAMPLE = "zoo eval runs/lm_rope/latest evaluate.lengths=[1x,2x,4x]"
OPTIONS = (("evaluate.", "zoo.config.schema:EvaluateOptions"),)
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
        metavar="key=value",
        help="the options below, and keys of the stored recipe",
    )


def run(known: argparse.Namespace) -> None:
    """Evaluate, and print a table or JSON."""
    from zoo.api.evaluation import evaluate
    from zoo.config.command_line import parse_overrides

    # most evaluations take the recipe as it is, and have no words to parse
    edits = parse_overrides(known.overrides) if known.overrides else []
    result = evaluate(known.checkpoint, edits, verbose=None)
    # one of several processes reports the result
    if is_secondary_process():
        return
    if known.json:
        print(as_json(result.to_dict()))
    else:
        from zoo.evaluation.results import table

        print(table(result))
