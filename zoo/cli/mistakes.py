"""Explain words of the command line that no command takes: what they mean, how it is written."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from zoo import registry
from zoo.cli.hints import write_command
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.suggestions import SYNONYM, TYPO, find_meant, nearest, offer

BRACKETS: Mapping[str, str] = {"[": "]", "{": "}"}
HELP = {"help": "--help", "version": "--version", "usage": "--help"}


def explain_command(arguments: Sequence[str], commands: Sequence[str]) -> ConfigIssue:
    """Explain a first word that is no command."""
    word, following = arguments[0], arguments[1:]
    hint = ""
    if word in HELP:
        hint = f"write {write_command(HELP[word])}"
    elif following and following[0] in commands and not find_meant(word, commands, TYPO):
        hint = f"write {write_command(following[0], word)}: the command comes first"
    elif word in registry.recipe_files():
        hint = (
            f"it is a recipe: write {write_command('fit', word)}, or {write_command('show', word)}"
        )
    elif word in registry.names("encodings"):
        hint = f"it is an encoding: write {write_command('show', word)}"
    elif matches := [command for command in commands if command.split()[1:] == [word]]:
        hint = f"did you mean {matches[0]}?"
    return ConfigIssue(ARGUMENT, word, "unknown command", hint or nearest(word, commands))


def check_words(arguments: Sequence[str]) -> None:
    """Refuse words that were one until the shell split them at their spaces.

    Raises:
        RecipeError: A value in brackets, or an equals sign, stands in several words.
    """
    issues = [*_find_split_words(arguments)]
    if issues:
        raise RecipeError(*issues)


def _find_split_words(arguments: Sequence[str]) -> Iterator[ConfigIssue]:
    number = 0
    while number < len(arguments):
        taken = _count_parts(arguments[number:])
        whole = " ".join(arguments[number : number + taken])
        if taken > 1 and "=" in arguments[number : number + taken]:
            joined = "".join(arguments[number : number + taken])
            message = f"{whole!r}: spaces around ="
            yield ConfigIssue(ARGUMENT, "", message, f"write {shlex.quote(joined)}")
        elif taken > 1:
            message = f"{whole!r}: the shell has split it at its spaces"
            yield ConfigIssue(ARGUMENT, "", message, f"put it in quotes: {shlex.quote(whole)}")
        number += taken


def _count_parts(arguments: Sequence[str]) -> int:
    """Return how many words were one; 1 if the first is whole."""
    head, tail = arguments[0], arguments[1:]
    if len(tail) > 1 and tail[0] == "=" and not head.startswith("-"):
        return 3
    key, equals, _ = head.partition("=")
    is_option = equals and all(part.isidentifier() for part in key.split("."))
    if not (is_option or head[:1] in BRACKETS) or not _list_open(head):
        return 1
    for count, word in enumerate(tail, 2):
        if not _list_open(" ".join(arguments[:count])):
            return count
        if "=" in word or word.startswith("-"):
            break
    return 1


def _list_open(word: str) -> list[str]:
    """Return the brackets that text opens and does not close; none if it closes too many."""
    expected: list[str] = []
    for sign in word:
        if sign in BRACKETS:
            expected.append(BRACKETS[sign])
        elif sign in BRACKETS.values() and (not expected or expected.pop() != sign):
            return []
    return expected


def explain_argument(
    parser: argparse.ArgumentParser, word: str, keys: Sequence[str]
) -> ConfigIssue:
    """Explain an argument that a command does not have.

    Args:
        parser: The parser of the command.
        word: The argument.
        keys: The keys that the command takes as key=value.
    """
    if not word.startswith("-"):
        hint = f"see {parser.prog} --help"
        return ConfigIssue(ARGUMENT, word, "unknown argument", hint)
    flag, equals, value = word.partition("=")
    flags = [*parser._option_string_actions]
    key = flag.lstrip("-").replace("-", "_")
    meant = find_meant(key, keys, SYNONYM) if key not in keys else [key]
    # run_dir is another word for --run-dir, and output_dir too
    flags_by_dest = {option.lstrip("-").replace("-", "_"): option for option in flags}
    same = [flags_by_dest[dest] for dest in find_meant(key, flags_by_dest, SYNONYM)]
    if near := same or find_meant(flag, flags, TYPO):
        return ConfigIssue(ARGUMENT, word, "unknown argument", offer(flag, near))
    if meant := meant or find_meant(key, keys, TYPO):
        choices = " or ".join(f"{name}={value if equals else '...'}" for name in meant)
        return ConfigIssue(ARGUMENT, word, "unknown argument", f"write {choices}, without dashes")
    return ConfigIssue(ARGUMENT, word, "unknown argument", nearest(flag, flags))


def find_flags_as_keys(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    list_keys: Callable[[], Sequence[str]],
) -> Iterator[ConfigIssue]:
    """Yield an issue for each `run_dir=x`, which is written `--run-dir x`.

    Args:
        parser: The parser of the command.
        arguments: Words of the command line.
        list_keys: Returns the keys that the command takes as key=value.
    """
    flags = {action.dest: action for action in parser._actions if action.option_strings}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            continue
        near = [key] if key in flags else find_meant(key, [*flags], SYNONYM)
        for meant in near or find_meant(key, [*flags], TYPO):
            keys = [*list_keys()]
            least = SYNONYM if near else TYPO
            if key in keys or (key not in flags and find_meant(key, keys, least)):
                continue
            takes_value = flags[meant].nargs != 0
            flag = flags[meant].option_strings[-1]
            hint = f"write {flag} {value}" if takes_value else f"write {flag}"
            yield ConfigIssue(ARGUMENT, "", f"{word!r}: an argument with dashes", hint)
