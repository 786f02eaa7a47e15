"""How the command line spells settings, in errors and in logged messages."""

import logging

import pytest

from zoo.cli.edge import COMMAND_LINE, CommandLineFormatter
from zoo.errors import Message, Setting


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (Setting("resume", "auto"), "--resume auto"),
        (Setting("wait", True), "--wait"),
        (Setting("run_dir"), "--run-dir"),
        (Setting("optim.lr", 0.1), "optim.lr=0.1"),
        (Setting("seeds", [0, None, True]), "seeds=[0,null,true]"),
    ],
)
def test_a_setting_is_spelled_as_a_user_types_it(setting, text):
    assert COMMAND_LINE.spell(setting) == text


def test_logged_messages_are_spelled_and_left_unchanged_for_other_handlers():
    message = Message("add ", Setting("resume", "auto"))
    formatter = CommandLineFormatter("%(message)s")
    for msg, args in ((message, ()), ("%s", (message,))):
        record = logging.LogRecord("zoo", logging.INFO, "", 0, msg, args, None)
        assert formatter.format(record) == "add --resume auto"
        assert record.getMessage() == 'add resume="auto"'
