"""Commands that the user can copy from a message: as they called `zoo`, and quoted for a shell.

A hint is for the environment that prints it.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from pathlib import Path

from zoo.packages import name_program, name_python, shorten_path

log = logging.getLogger("zoo")


def name_zoo() -> str:
    """Return how the user called `zoo`: `zoo`, `.venv/bin/zoo` or `python -m zoo`."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py" and called.parent.name == "zoo":
        return f"{name_python()} -m zoo"
    program = shutil.which("zoo")
    # a Python program that runs commands, such as a test, was not called zoo
    if called.name != "zoo" or (
        program is not None and Path(program).absolute() == called.absolute()
    ):
        return "zoo"
    return shorten_path(called)


def write_command(*arguments: str) -> str:
    """Return a command of zoo.

    Args:
        arguments: The words after `zoo`. Those in capitals stand for others.
    """
    return f"{name_zoo()} {shlex.join(arguments)}"


def write_example(example: str) -> str:
    """Return the example of a command, which begins with `zoo`, as the user calls it."""
    return f"{name_zoo()}{example.removeprefix('zoo')}"


def write_tensorboard(folder: Path) -> str:
    """Return the command that shows the logs of a run."""
    program = name_program("tensorboard", "tensorboard.main")
    return f"{program} --logdir {shlex.quote(str(folder))}"


def log_next(*commands: str) -> None:
    """Log commands that the user may want to run next, each on a line of its own."""
    for command in commands:
        log.info("next: %s", command)
