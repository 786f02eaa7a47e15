"""The parser of the command line, made of what each verb says of itself."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import NoReturn

from zoo import __version__
from zoo.cli import (
    bench,
    check,
    compare,
    convert,
    diagnose,
    diff,
    evaluate,
    fit,
    generate,
    launch,
    listing,
    predict,
    show,
)
from zoo.errors import Fault, RecipeError

# {name: module}, in the order of `zoo --help`: SUMMARY, `arguments(parser)`, `run(known)`, and JSON where it answers so too
VERBS: Mapping[str, ModuleType] = MappingProxyType(
    {
        "fit": fit,
        "eval": evaluate,
        "generate": generate,
        "predict": predict,
        "diagnose": diagnose,
        "bench": bench,
        "compare": compare,
        "launch": launch,
        "convert": convert,
        "check": check,
        "list": listing,
        "show": show,
        "diff": diff,
    }
)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RecipeError(Fault("command line", "", message, f"see {self.prog} --help"))


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="zoo", description="Train, compare and understand transformers by how they know position.",
        epilog="A RECIPE is a YAML file or a registered name; key=value changes one of its keys, ~key removes one.",
    )  # fmt: skip
    made.add_argument("--version", action="version", version=f"zoo {__version__}")
    verbs = made.add_subparsers(metavar="VERB", required=True, parser_class=Parser)
    for name, verb in VERBS.items():
        own = verbs.add_parser(name, help=verb.SUMMARY, description=verb.SUMMARY)
        own.set_defaults(run=verb.run, json=False)
        own.add_argument("--plugin", action="append", metavar="MODULE", help="a package with encodings, recipes, ...")
        if getattr(verb, "JSON", False):
            own.add_argument("--json", action="store_true", help="print the result as one JSON object")
        verb.arguments(own)
    return made
