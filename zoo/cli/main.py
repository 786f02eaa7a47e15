"""A command as it is run: its plug-ins, its faults in words, its exit code."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import NoReturn

from zoo import __version__, registry
from zoo.cli import (
    bench,
    compare,
    convert,
    diagnose,
    diff,
    fit,
    generate,
    launch,
    predict,
    show,
    verify,
)
from zoo.cli import eval as evaluate
from zoo.cli import list as listing
from zoo.errors import ConfigIssue, RecipeError, ZooError
from zoo.utils import malloc

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
        "check": verify,
        "list": listing,
        "show": show,
        "diff": diff,
    }
)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RecipeError(ConfigIssue("command line", "", message, f"see {self.prog} --help"))


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="zoo",
        description="Train, compare and understand transformers by how they know position.",
        epilog="A RECIPE is a YAML file or a registered name; key=value changes one of its keys, ~key removes one.",
    )
    made.add_argument("--version", action="version", version=f"zoo {__version__}")
    verbs = made.add_subparsers(metavar="VERB", required=True, parser_class=Parser)
    for name, verb in VERBS.items():
        own = verbs.add_parser(name, help=verb.SUMMARY, description=verb.SUMMARY)
        own.set_defaults(run=verb.run, json=False)
        own.add_argument(
            "--plugin",
            action="append",
            metavar="MODULE",
            help="a package with encodings, recipes, ...",
        )
        if getattr(verb, "JSON", False):
            own.add_argument(
                "--json", action="store_true", help="print the result as one JSON object"
            )
        verb.arguments(own)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code. A fault of the user never shows a traceback."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("zoo").setLevel(logging.DEBUG)
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.INFO)
    try:
        known, more = parser().parse_known_args(arguments)
        known.words = sys.argv[1:] if arguments is None else list(arguments)
        if any(word.startswith("-") for word in more) or (more and not hasattr(known, "overrides")):
            raise RecipeError(
                ConfigIssue("command line", more[0], "unknown argument", "see zoo --help")
            )
        if more:  # overrides after a flag
            known.overrides += more
        if known.plugin:
            sys.path.insert(
                0, os.getcwd()
            )  # a package beside the user is found like an installed one
            os.environ[registry.PLUGINS] = ",".join(known.plugin)
        malloc.keep()
        known.run(known)
    except ZooError as error:
        if str(error) and not (isinstance(error, RecipeError) and _repeated()):
            print(f"zoo: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:  # as in: zoo list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a directory that cannot be written
        print(
            f"zoo: {error.filename or 'input or output'}: {error.strerror or error}",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("zoo: stopped by SIGINT", file=sys.stderr)
        return 130
    return 0


def _repeated() -> bool:
    """Whether this is one of several processes, all of which find the same faults before they know of each other."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) != "0"


def entry() -> NoReturn:
    """The `zoo` command."""
    sys.exit(main())
