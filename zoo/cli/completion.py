"""`zoo completion`: a script that completes commands, flags, recipes and encodings in a shell."""

from __future__ import annotations

import argparse

from zoo import registry
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError, nearest
from zoo.packages import explain_imports

SUMMARY = "print a completion script for bash, zsh or fish"
EXAMPLE = 'eval "$(zoo completion bash)"'
SHELLS = ("bash", "zsh", "fish")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("shell", metavar="|".join(SHELLS))


def run(known: argparse.Namespace) -> None:
    """Print the script."""
    if known.shell not in SHELLS:
        hint = nearest(known.shell, SHELLS)
        raise RecipeError(ConfigIssue(ARGUMENT, known.shell, "no such shell", hint))
    print(write_script(known.shell))


def write_script(shell: str) -> str:
    """Return the completion script of a shell; it knows the members that are installed now."""
    from zoo.cli.main import build_parser

    with explain_imports():
        import shtab

    parser = build_parser()
    recipes, encodings = [*registry.recipe_files()], [*registry.names("encodings")]
    words = {
        "recipe": recipes,
        "what": [*recipes, *encodings],
        "encodings": encodings,
        "one": recipes,
        "other": recipes,
        "shell": [*SHELLS],
    }
    for command in _list_commands(parser):
        for action in command._actions:
            if action.dest in words and not action.option_strings:
                action.choices = words[action.dest]
    script: str = shtab.complete(parser, shell)
    return script


def _list_commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return [*action.choices.values()]
    return []
