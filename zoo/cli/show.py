"""`zoo show`: a recipe resolved, or an encoding explained."""

from __future__ import annotations

import argparse

from zoo import registry

SUMMARY = "show a resolved recipe, or explain an encoding"
EXAMPLE = "zoo show liere dim=768 heads=12 axes=2 length=14"
OPTIONS = (("", "zoo.cli.describe:ShowOptions"), ("", "zoo.cli.describe:Sizes"))


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("what", metavar="RECIPE|ENCODING")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="overrides of a recipe, or the options below and those of the encoding",
    )


def run(known: argparse.Namespace) -> None:
    """Print the text."""
    if known.what in registry.names("encodings"):
        from zoo.cli.describe import UnwrittenPicture, explain_encoding

        try:
            print(explain_encoding(known.what, known.overrides))
        except UnwrittenPicture as error:
            print(error.text)
            raise
    else:
        from zoo.cli.describe import describe_recipe
        from zoo.config.command_line import parse_overrides

        print(describe_recipe(known.what, parse_overrides(known.overrides)))
