"""The command that repeats a call, for reports: the command line, else the call itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.config import Overrides

COMMAND: ContextVar[str] = ContextVar("COMMAND", default="")
"""The command line whose call is being made; empty in a Python program."""


@contextmanager
def record_command(command: str) -> Iterator[None]:
    """Within the block, name a command line as what repeats each call.

    Args:
        command: The command line, quoted for a shell.
    """
    token = COMMAND.set(command)
    try:
        yield
    finally:
        COMMAND.reset(token)


def describe_call(
    function: str, subject: Any, overrides: Overrides = (), options: Mapping[str, Any] | None = None
) -> str:
    """Return the command line that makes a call, or in a Python program the call itself.

    Args:
        function: The function, such as `zoo.compare`.
        subject: Its first argument.
        overrides: Its changes of recipes.
        options: Its further arguments; those that are None are left out.
    """
    if command := COMMAND.get():
        return command
    from zoo.config import Removal
    from zoo.config.overrides import list_edits

    edits = list_edits(overrides)
    arguments = [repr(subject)]
    if any(isinstance(edit, Removal) for edit in edits):
        arguments.append(repr(edits))
    elif edits:
        arguments.append(repr({edit.key: edit.value for edit in edits if hasattr(edit, "value")}))
    values = options or {}
    arguments += [f"{key}={value!r}" for key, value in values.items() if value is not None]
    return f"{function}({', '.join(arguments)})"
