"""A slip of one letter in an option of a command is answered with that option."""

import importlib
import re

import pytest

from zoo.cli.commands import COMMANDS
from zoo.cli.main import build_command_parser, find_command
from zoo.cli.mistakes import find_flags_as_keys
from zoo.config.command_line import split_words
from zoo.config.schema import Sections
from zoo.errors import RecipeError
from zoo.options.signature import fields
from zoo.suggestions import find_meant, is_slip


def load_options(command):
    """Return the classes that declare the options of a command, which stand in no section."""
    words = [word for prefix, word in command.options if not prefix]
    pairs = [word.partition(":") for word in words]
    return [getattr(importlib.import_module(module), name) for module, _, name in pairs]


OPTIONS = {name: load_options(find_command(name)) for name in COMMANDS}


def list_slips(word):
    """Yield a word with two letters swapped, one left out, one twice, and another last one."""
    for at in range(len(word) - 1):
        yield word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    for at in range(1, len(word)):
        yield word[:at] + word[at + 1 :]
        yield word[:at] + word[at - 1] + word[at:]
    yield f"{word[:-1]}z"


@pytest.mark.parametrize("name", [name for name, classes in OPTIONS.items() if classes])
def test_an_option_of_a_command_comes_before_keys_of_recipes_and_synonyms(name):
    known = [word for one in OPTIONS[name] for word in fields(one)]
    for option in known:
        for slip in list_slips(option) if len(option) > 4 else ():
            if slip in known or slip in fields(Sections):
                continue
            with pytest.raises(RecipeError) as caught:
                split_words([f"{slip}=1"], OPTIONS[name])
            meant = re.findall(r"did you mean (\w+)", str(caught.value))
            # top_ is a slip of top_k and of top_p
            assert meant, slip
            assert meant[0] == option or (meant[0] in known and is_slip(slip, meant[0])), slip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_flag_without_its_dashes_is_found_in_spite_of_a_slip(name):
    parser = build_command_parser(name)
    for action in parser._actions:
        if not action.option_strings or len(action.dest) < 5:
            continue
        slip = f"{action.dest[:-2]}{action.dest[-1]}{action.dest[-2]}"
        issues = [*find_flags_as_keys(parser, [f"{slip}=x"], list)]
        assert action.option_strings[-1] in str(issues[0]), slip


def test_a_slip_comes_before_a_synonym():
    # epoch is another word for max_epochs too
    assert find_meant("epoch", ["max_epochs", "epochs"]) == ["epochs"]
    assert find_meant("epoch", ["max_epochs", "length"]) == ["max_epochs"]
