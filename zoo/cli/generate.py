"""`zoo generate`: continue a prompt."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from zoo.cli.commands import Command
from zoo.reporting.numbers import as_json
from zoo.utils import escape_text

if TYPE_CHECKING:
    from zoo.config import Edit

TEXT_OPTIONS = ("prompt", "stop")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "checkpoint",
        metavar="RUN|CHECKPOINT",
        help="a run directory, RUN/last, RUN/best or a checkpoint file",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="the options below")


def run(args: argparse.Namespace) -> None:
    """Generate; with --json print only the result."""
    from zoo.api.guard import suggest_smaller
    from zoo.evaluation.generate import generate

    # each piece of text once it is there: `zoo.generate` returns when all are
    show = None if args.json else _print
    with suggest_smaller("generate"):
        result = generate(args.checkpoint, read(args), show)
    if args.json:
        print(as_json(result.to_dict()))


def read(args: argparse.Namespace) -> list[Edit]:
    r"""Return options of the section `generate`; texts need no quotes, and \n is a new line."""
    from zoo.config import Change, check_edits
    from zoo.config.command_line import parse_overrides

    edits: list[Edit] = []
    for word in args.overrides:
        key, equals, value = word.partition("=")
        # read as they are written: YAML would take "3: yes" for a mapping
        if key in TEXT_OPTIONS and equals:
            edits.append(Change(f"generate.{key}", value.replace("\\n", "\n")))
        else:
            edits += parse_overrides([word if "." in key or not equals else f"generate.{word}"])
    check_edits(edits)
    return edits


def _print(piece: str) -> None:
    # generated text may hold control characters, which would reach the terminal
    sys.stdout.write(escape_text(piece, keep="\n\t"))
    sys.stdout.flush()


COMMAND = Command(
    summary="continue a prompt with a language model",
    example='zoo generate runs/lm_rope/latest prompt="The import statement" temperature=0.7',
    add_arguments=add_arguments,
    run=run,
    read=read,
    options=(("", "zoo.config.schema:GenerateOptions"),),
    prints_json=True,
    computes=True,
)
