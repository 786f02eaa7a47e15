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


def read(known: argparse.Namespace) -> None:
    """Read the words. Raises RecipeError where one is wrong."""
    if known.what in registry.names("encodings"):
        _read_encoding(known.what, known.overrides)
    elif known.what in registry.names("mixers"):
        _read_mixer(known.what, known.overrides)
    elif known.what == SCHEMA:
        if known.overrides:
            problem = "the schema has no options"
            raise RecipeError(
                ConfigIssue(ARGUMENT, "", problem, f"write {write_command('show', SCHEMA)}")
            )
    else:
        from zoo.config import find_recipe, load
        from zoo.config.command_line import parse_overrides

        others = [*registry.names("encodings"), *registry.names("mixers"), SCHEMA]
        load(
            find_recipe(known.what, others, "recipe or encoding"), parse_overrides(known.overrides)
        )


def list_packages(known: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that draw a picture."""
    is_named = any(word.startswith("picture=") for word in known.overrides)
    return EXTRAS["compare"] if is_named else ()


def run(known: argparse.Namespace) -> None:
    """Print the text."""
    if known.what == SCHEMA:
        from zoo.config.json_schema import build_schema

        print(json.dumps(build_schema(), indent=1))
    elif known.what in registry.names("encodings"):
        from zoo.cli.describe import UnwrittenPicture, explain_encoding

        try:
            print_text(explain_encoding(known.what, known.overrides))
        except UnwrittenPicture as error:
            # all but the picture is printed; the error follows it
            print_text(error.text)
            raise
    elif known.what in registry.names("mixers"):
        from zoo.cli.describe import explain_mixer

        print_text(explain_mixer(known.what, known.overrides))
    else:
        # the library of the Hub reads it when it is imported, and tries five times without it
        os.environ["HF_HUB_OFFLINE"] = "1"
        from zoo.cli.describe import describe_recipe
        from zoo.config import find_recipe
        from zoo.config.command_line import parse_overrides

        recipe = find_recipe(known.what)
        print_text(describe_recipe(str(recipe), parse_overrides(known.overrides)))


def _read_encoding(name: str, words: Sequence[str]) -> None:
    """Read the options of an encoding and of the command."""
    from zoo.config.command_line import parse_options
    from zoo.options.signature import EveryEncoding, read_options
    from zoo.options.unknown import OptionOwner

    sources = (read_options("encodings", name), EveryEncoding, SIZES, SHOW)
    parse_options(words, sources, OptionOwner("encodings", name))


def _read_mixer(name: str, words: Sequence[str]) -> None:
    """Read the options of a mixer and of the command."""
    from zoo.config.command_line import parse_options
    from zoo.options.signature import read_options
    from zoo.options.unknown import OptionOwner

    parse_options(words, (read_options("mixers", name), MIXER_SIZES), OptionOwner("mixers", name))


COMMAND = Command(
    summary="show a resolved recipe, explain an encoding or mixer, or print the schema of recipes",
    example="zoo show liere dim=768 heads=12 axes=2 length=14",
    add_arguments=add_arguments,
    run=run,
    read=read,
    list_packages=list_packages,
    options=(("", SHOW), ("", SIZES)),
)
