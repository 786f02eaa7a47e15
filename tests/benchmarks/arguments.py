"""The command line of a benchmark: its help is the docstring of its file."""

import argparse
import sys
from collections.abc import Callable, Collection


def make_parser(documentation: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows a docstring unchanged."""
    return argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def positive(text: str) -> int:
    """Return a number that counts something: 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer of 1 or more")
    return int(text)


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """Return a type of arguments that are one of some names each."""

    def check(word: str) -> str:
        if word not in names:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(names)}")
        return word

    return check


def parse_with_overrides(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments, and the words `key=value` that stand anywhere among them."""
    words = sys.argv[1:]
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    return parser.parse_args([word for word in words if word not in overrides]), overrides
