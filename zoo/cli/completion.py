"""`zoo --print-completion SHELL`: complete commands, flags, recipes and encodings in a shell."""

from __future__ import annotations

import argparse
from typing import Any

from zoo.packages import explain_imports
from zoo.registry import names, recipe_files

SHELLS = ("bash", "zsh", "fish")


class PrintCompletion(argparse.Action):
    """Print the completion script of a shell and exit, as the action of shtab does.

    shtab is an optional package, so it is imported only here.
    """

    def __init__(self, option_strings: list[str], dest: str, **options: Any) -> None:
        super().__init__(
            option_strings,
            dest,
            choices=SHELLS,
            metavar="SHELL",
            help=f"print a completion script: {', '.join(SHELLS)}",
            **options,
        )

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: Any, flag: object = None
    ) -> None:
        """Print the script."""
        print(write_script(parser, values))
        parser.exit()


def write_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion script of a shell; it knows the members that are installed now."""
    with explain_imports():
        import shtab

    # the script lists them once: it runs without Python
    recipes, encodings = [*recipe_files()], [*names("encodings")]
    choices = {
        "recipe": recipes,
        "what": [*recipes, *encodings, "schema"],
        "encodings": encodings,
        "one": recipes,
        "other": recipes,
    }
    for command in _list_commands(parser):
        for action in command._actions:
            if action.dest in choices and not action.option_strings:
                action.choices = choices[action.dest]
    script: str = shtab.complete(parser, shell)
    return script


def _list_commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return [*action.choices.values()]
    return []
