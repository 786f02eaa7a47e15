"""Compare variants of a recipe: `zoo compare`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zoo.cli.commands import Command, print_result
from zoo.cli.hints import write_command
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.packages import EXTRAS

if TYPE_CHECKING:
    from zoo.config import Edit

SUITE, COMPARE = "zoo.api.comparison:SuiteOptions", "zoo.api.comparison:CompareOptions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="encodings=[rope,alibi] and vary.KEY=[VALUE,...] set what varies, "
        "tune.KEY=[LOW,HIGH,log] what is tuned; options, and keys of the recipe",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print cells, steps, FLOPs, disk and time, the latter from records, and start nothing",
    )


def parse_words(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `zoo.compare` that words stand for.

    Raises:
        RecipeError: Some words are no `key=value` or bad YAML; all issues are reported together.
    """
    from zoo import registry
    from zoo.config import Change
    from zoo.config.command_line import parse_option_words, parse_overrides
    from zoo.config.tree import collect_issues
    from zoo.options.signature import read_options

    executors = (read_options("executors", name) for name in registry.names("executors"))
    issues: list[ConfigIssue] = []
    options: dict[str, Any] = {}
    values: dict[str, dict[str, Any]] = {"vary": {}, "tune": {}}
    overrides: list[Edit] = []
    with collect_issues(issues):
        options, remaining = parse_option_words(arguments, (SUITE, COMPARE, *executors))
        for word in remaining:
            with collect_issues(issues):
                (edit,) = parse_overrides([word])
                argument, _, key = edit.key.partition(".")
                if argument not in values:
                    overrides.append(edit)
                    continue
                if key in values[argument]:
                    message = "the key is listed twice"
                    raise RecipeError(
                        ConfigIssue(ARGUMENT, edit.key, message, "write one list of all values")
                    )
                values[argument][key] = edit.value if isinstance(edit, Change) else None
    if issues:
        raise RecipeError(*issues)
    return {"overrides": overrides, **values, **options}


def read(args: argparse.Namespace) -> None:
    """Read the words. Raises RecipeError where an option, the recipe or an encoding is wrong."""
    from zoo.comparison.suite_files import find_suite
    from zoo.config.tree import collect_issues

    argv = list_words(args)
    is_suite = any(word.startswith("suite=") for word in argv)
    if args.recipe is None and not is_suite:
        example = write_command("compare", "RECIPE", "encodings=[rope,alibi]")
        hint = f"write {example}, or suite=small"
        raise RecipeError(ConfigIssue(ARGUMENT, "", "no recipe", hint))
    arguments = parse_words(argv if is_suite else args.overrides)
    edits, encodings = arguments.pop("overrides"), arguments.pop("encodings", None)
    for name in ("vary", "tune"):
        arguments.pop(name)
    issues: list[ConfigIssue] = []
    with collect_issues(issues):
        _read_options(arguments)
    with collect_issues(issues):
        if is_suite:
            find_suite(str(arguments["suite"]))
        else:
            _read_variants(args.recipe, edits, encodings)
    if issues:
        raise RecipeError(*issues)


def _read_options(options: Mapping[str, Any]) -> None:
    """Read the options. Raises RecipeError where one is wrong."""
    from zoo import registry
    from zoo.config.arguments import validate_given
    from zoo.options.signature import read_class, read_options

    schema = {**read_class(SUITE), **read_class(COMPARE)}
    engine = options.get("engine", schema["engine"].default)
    # a wrong one is explained by the command
    if engine in registry.names("executors"):
        schema |= read_options("executors", engine)
        validate_given(options, schema, ("encodings", "vary", "tune"))


def _read_variants(recipe: str, edits: Sequence[Edit], encodings: Any) -> None:
    """Read the recipe with each encoding. Raises RecipeError where one is wrong."""
    from zoo.config import Change, load
    from zoo.config.command_line import list_chain
    from zoo.config.tree import collect_issues
    from zoo.options.plain import format_label

    load(recipe, edits)
    issues: list[ConfigIssue] = []
    for encoding in encodings if isinstance(encodings, list) else ():
        variant_issues: list[ConfigIssue] = []
        with collect_issues(variant_issues):
            load(recipe, [*edits, Change("model.encoding", list_chain(encoding))])
        issues += (replace(issue, subject=format_label(encoding)) for issue in variant_issues)
    if issues:
        raise RecipeError(*issues)


def list_packages(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that compute the intervals and draw the figures."""
    return () if args.dry_run else EXTRAS["compare"]


def list_words(args: argparse.Namespace) -> list[str]:
    """Return all words: a suite is no positional argument, so that the first may be any option."""
    return [word for word in (args.recipe, *args.overrides) if word is not None]


def run(args: argparse.Namespace) -> None:
    """Run or estimate a comparison or a suite, and print the table or JSON."""
    from zoo.api import comparison

    argv = list_words(args)
    count: Callable[..., Any]
    train: Callable[..., Any]
    if any(word.startswith("suite=") for word in argv):
        options = parse_words(argv)
        for name in ("vary", "tune"):
            if options.pop(name):
                hint = "copy the file of the suite, and change it there"
                raise RecipeError(ConfigIssue(ARGUMENT, name, "the suite decides it", hint))
        subject = options.pop("suite")
        count, train = comparison.estimate_suite, comparison.compare_suite
    else:
        options, subject = parse_words(args.overrides), args.recipe
        count, train = comparison.estimate_comparison, comparison.compare
    if args.dry_run:
        print_result(count(subject, verbose=None, **options), args)
    else:
        print_result(train(subject, verbose=None, **options), args)


COMMAND = Command(
    summary="train a recipe with several encodings, or values of other keys, and rank them",
    example="zoo compare vit_comrope 'encodings=[none,learned,rope_axial]' seeds=3 to=comparison",
    add_arguments=add_arguments,
    run=run,
    read=read,
    list_packages=list_packages,
    options=(("", SUITE), ("", COMPARE), ("", "zoo.launch.slurm_executor:SlurmExecutor")),
    passing=("minutes", "part"),
    is_recorded=True,
    prints_json=True,
    computes=True,
)
