"""`zoo show`: a recipe resolved, an encoding explained, or the JSON schema of recipes."""

from __future__ import annotations

import argparse
import json

from zoo import registry
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError

SUMMARY = "show a resolved recipe, explain an encoding, or print the JSON schema of recipes"
EXAMPLE = "zoo show liere dim=768 heads=12 axes=2 length=14"
SCHEMA = "schema"
OPTIONS = (("", "zoo.cli.describe:ShowOptions"), ("", "zoo.cli.describe:Sizes"))


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("what", metavar="RECIPE|ENCODING|schema")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="overrides of a recipe, or the options below and those of the encoding",
    )


def run(known: argparse.Namespace) -> None:
    """Print the text."""
    if known.what == SCHEMA and not known.overrides:
        from zoo.config.json_schema import build_schema

        print(json.dumps(build_schema(), indent=1))
    elif known.what in registry.names("encodings"):
        from zoo.cli.describe import UnwrittenPicture, explain_encoding

        try:
            print(explain_encoding(known.what, known.overrides))
        except UnwrittenPicture as error:
            # all but the picture is printed; the error follows it
            print(error.text)
            raise
    elif known.what == SCHEMA:
        problem = "the schema has no options"
        raise RecipeError(ConfigIssue(ARGUMENT, "", problem, f"write zoo show {SCHEMA}"))
    else:
        from zoo.config import find_recipe

        others = [*registry.names("encodings"), SCHEMA]
        recipe = find_recipe(known.what, others, "recipe or encoding")
        from zoo.cli.describe import describe_recipe
        from zoo.config.command_line import parse_overrides

        print(describe_recipe(str(recipe), parse_overrides(known.overrides)))
