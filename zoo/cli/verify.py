"""Verify encodings against the laws: `zoo verify`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zoo import registry
from zoo.cli.commands import Command
from zoo.cli.hints import write_command
from zoo.cli.terminal import print_text
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.reporting.numbers import as_json

if TYPE_CHECKING:
    from zoo.options import Choice

VERIFY = "zoo.laws.run:VerifyOptions"
ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="ENCODING|all|key=value",
        help="names of encodings, options of a single encoding, or the options below",
    )


def read(args: argparse.Namespace) -> tuple[list[tuple[Choice, ...]] | None, dict[str, Any]]:
    """Return the encodings, None for all, and the options of the command.

    Raises:
        RecipeError: With the issues of options and encodings together.
    """
    from zoo.config.tree import collect_issues

    arguments = args.overrides
    assignments = [
        word for word in arguments if word.partition("=")[0].isidentifier() and "=" in word
    ]
    names = [word for word in arguments if word not in assignments]
    issues: list[ConfigIssue] = []
    encodings: list[tuple[Choice, ...]] = []
    options: dict[str, Any] = {}
    encoding_options: dict[str, Any] = {}
    with collect_issues(issues):
        options, encoding_options = _parse_options(assignments, names)
    with collect_issues(issues):
        encodings = _parse_encodings(names, encoding_options)
    if issues:
        raise RecipeError(*issues)
    return None if names == [ALL] else encodings, options


def run(args: argparse.Namespace) -> None:
    """Print the certificates; fail if a law is broken."""
    from zoo.api.tools import verify
    from zoo.laws.report import format_certificates

    encodings, options = read(args)
    result = verify(encodings, verbose=None, **options)
    if args.json:
        print(as_json(result.to_dict()))
    elif result.certificates:
        print_text(format_certificates(result.certificates))
    result.raise_if_broken()


def _parse_options(
    assignments: Sequence[str], names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the options of the command from those of an encoding that is the only one."""
    from zoo.config.command_line import parse_options
    from zoo.options.signature import EveryEncoding, read_options

    # options of an encoding are unambiguous only where a single one is named
    is_single = len(names) == 1 and names[0] in registry.names("encodings")
    sources = (read_options("encodings", names[0]), EveryEncoding) if is_single else ()
    options, *groups = parse_options(assignments, (VERIFY, *sources))
    keys = {word.partition("=")[0] for word in assignments}
    encoding_options = {
        key: value for group in groups for key, value in group.items() if key in keys
    }
    return options, encoding_options


def _parse_encodings(
    names: Sequence[str], encoding_options: dict[str, Any]
) -> list[tuple[Choice, ...]]:
    """Return the encodings of words, a single one with options of its own."""
    if not names:
        hint = f"name one, or all; see {write_command('list', 'encodings')}"
        raise RecipeError(ConfigIssue(ARGUMENT, "", "no encoding", hint))
    if list(names) == [ALL]:
        return []
    from zoo.config.command_line import parse_encodings
    from zoo.options import Choice

    chains = parse_encodings(names)
    return [(Choice(chains[0][0].name, encoding_options),)] if encoding_options else chains


COMMAND = Command(
    summary="check encodings against the laws and report what was measured",
    example="zoo verify liere block=4 axes=2",
    add_arguments=add_arguments,
    run=run,
    read=read,
    options=(("", VERIFY),),
    is_recorded=True,
    prints_json=True,
)
