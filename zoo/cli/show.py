"""`zoo show`: a recipe resolved, an encoding or mixer explained, or the schema of recipes."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence

from zoo import registry
from zoo.cli.commands import Command
from zoo.cli.hints import write_command
from zoo.cli.terminal import print_text
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.packages import EXTRAS

SCHEMA = "schema"
SHOW, SIZES = "zoo.cli.describe:ShowOptions", "zoo.cli.describe:Sizes"
MIXER_SIZES = "zoo.cli.describe:MixerSizes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("what", metavar="RECIPE|ENCODING|MIXER|schema")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="overrides of a recipe, or the options below and those of the encoding or mixer",
    )


def read(args: argparse.Namespace) -> None:
    """Read the words. Raises RecipeError where one is wrong."""
    if args.what in registry.names("encodings"):
        _read_encoding(args.what, args.overrides)
    elif args.what in registry.names("mixers"):
        _read_mixer(args.what, args.overrides)
    elif args.what == SCHEMA:
        if args.overrides:
            message = "the schema has no options"
            raise RecipeError(
                ConfigIssue(ARGUMENT, "", message, f"write {write_command('show', SCHEMA)}")
            )
    else:
        from zoo.config import find_recipe, load
        from zoo.config.command_line import parse_overrides

        names = [*registry.names("encodings"), *registry.names("mixers"), SCHEMA]
        load(find_recipe(args.what, names, "recipe or encoding"), parse_overrides(args.overrides))


def list_packages(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that draw a picture."""
    is_named = any(word.startswith("picture=") for word in args.overrides)
    return EXTRAS["compare"] if is_named else ()


def run(args: argparse.Namespace) -> None:
    """Print the text."""
    if args.what == SCHEMA:
        from zoo.config.json_schema import build_schema

        print(json.dumps(build_schema(), indent=1))
    elif args.what in registry.names("encodings"):
        from zoo.cli.describe import UnwrittenPicture, explain_encoding

        try:
            print_text(explain_encoding(args.what, args.overrides))
        except UnwrittenPicture as error:
            # all but the picture is printed; the error follows it
            print_text(error.text)
            raise
    elif args.what in registry.names("mixers"):
        from zoo.cli.describe import explain_mixer

        print_text(explain_mixer(args.what, args.overrides))
    else:
        # the library of the Hub reads it when it is imported, and tries five times without it
        os.environ["HF_HUB_OFFLINE"] = "1"
        from zoo.cli.describe import describe_recipe
        from zoo.config import find_recipe
        from zoo.config.command_line import parse_overrides

        recipe = find_recipe(args.what)
        print_text(describe_recipe(str(recipe), parse_overrides(args.overrides)))


def _read_encoding(name: str, arguments: Sequence[str]) -> None:
    """Read the options of an encoding and of the command."""
    from zoo.config.command_line import parse_options
    from zoo.options.signature import EveryEncoding, read_options
    from zoo.options.unknown import OptionOwner

    sources = (read_options("encodings", name), EveryEncoding, SIZES, SHOW)
    parse_options(arguments, sources, OptionOwner("encodings", name))


def _read_mixer(name: str, arguments: Sequence[str]) -> None:
    """Read the options of a mixer and of the command."""
    from zoo.config.command_line import parse_options
    from zoo.options.signature import read_options
    from zoo.options.unknown import OptionOwner

    parse_options(
        arguments, (read_options("mixers", name), MIXER_SIZES), OptionOwner("mixers", name)
    )


COMMAND = Command(
    summary="show a resolved recipe, explain an encoding or mixer, or print the schema of recipes",
    example="zoo show liere dim=768 heads=12 axes=2 length=14",
    add_arguments=add_arguments,
    run=run,
    read=read,
    list_packages=list_packages,
    options=(("", SHOW), ("", SIZES)),
)
