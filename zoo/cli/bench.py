"""Benchmark encodings: `zoo bench`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.cli.commands import Command, print_result
from zoo.cli.hints import write_command
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.registry import find_recipe_file

if TYPE_CHECKING:
    from zoo.options import Choice

BENCH, REFERENCE = "zoo.benchmark.runner:BenchOptions", "zoo.cli.bench:Reference"
NO_RECIPE = (
    "its models have the sizes of shape=...; name encodings, give a recipe whose layers differ as "
    "layers=[...], and time a whole recipe by"
)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The encoding that all others are compared with."""

    against: str | None = None
    """The reference, an encoding; null takes none for images and rope for text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="ENCODING|key=value",
        help="encodings, several joined by +, all by default; and options",
    )


class BenchWords(NamedTuple):
    """The words of the command as encodings, the reference, and options."""

    encodings: list[tuple[Choice, ...]]
    against: tuple[Choice, ...] | None
    options: dict[str, Any]


def read(args: argparse.Namespace) -> BenchWords:
    """Read the words. Raises RecipeError with the issues of options and encodings together."""
    from zoo.config.command_line import parse_encodings, parse_options
    from zoo.config.tree import collect_issues

    arguments = args.overrides
    assignments = [
        word for word in arguments if "=" in word and word.partition("=")[0].isidentifier()
    ]
    issues: list[ConfigIssue] = []
    with collect_issues(issues):
        options, reference = parse_options(assignments, (BENCH, REFERENCE))
    with collect_issues(issues):
        encodings = _parse_encodings([word for word in arguments if word not in assignments])
    if issues:
        raise RecipeError(*issues)
    against = reference["against"]
    chain = None if against is None else parse_encodings([against], "against")[0]
    return BenchWords(encodings, chain, options)


def run(args: argparse.Namespace) -> None:
    """Measure, and print the table or JSON."""
    from zoo.api.tools import bench

    request = read(args)
    result = bench(request.encodings, against=request.against, verbose=None, **request.options)
    print_result(result, args)


def _parse_encodings(names: Sequence[str]) -> list[tuple[Choice, ...]]:
    """Return the encodings of words. Raises RecipeError, also for the words of a recipe."""
    from zoo.config.command_line import parse_encodings
    from zoo.config.tree import collect_issues

    recipe_words = [word for word in names if is_of_recipe(word)]
    hint = f"{NO_RECIPE} {write_command('fit', 'RECIPE')}"
    issues = [
        ConfigIssue(ARGUMENT, word, "zoo bench takes no recipe", hint) for word in recipe_words
    ]
    with collect_issues(issues):
        encodings = parse_encodings([word for word in names if word not in recipe_words])
    if issues:
        raise RecipeError(*issues)
    return encodings


def is_of_recipe(word: str) -> bool:
    """Return whether a word names a recipe, or overrides one: `model.name=timm`, `~model`."""
    from zoo.config import Recipe

    sections = {field.name for field in fields(Recipe)}
    key = word.lstrip("~").partition("=")[0].partition(".")[0]
    return find_recipe_file(word) is not None or (("=" in word or "~" in word) and key in sections)


COMMAND = Command(
    summary="measure time and memory of encodings on this machine, side by side",
    example="zoo bench rope alibi kerple+dape shape=lm_small 'measures=[train,decode]' rounds=10",
    add_arguments=add_arguments,
    run=run,
    read=read,
    options=(("", BENCH), ("", REFERENCE)),
    is_recorded=True,
    prints_json=True,
    computes=True,
)
