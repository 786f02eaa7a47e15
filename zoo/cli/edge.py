"""How messages name options on the command line: `--resume auto`, `model.depth=8`."""

from __future__ import annotations

from typing import Any

from zoo.errors import NO_VALUE, Setting

FLAGS = {
    "accept_changes": "--accept-changes",
    "json": "--json",
    "plugin": "--plugin",
    "resume": "--resume",
    "run_dir": "--run-dir",
    "wait": "--wait",
}
"""Options with a flag; all others are written key=value."""


class CommandLineEdge:
    """Spell settings as a user types them after `zoo fit`."""

    origin = "command line"

    def spell(self, setting: Setting) -> str:
        """Return `--resume auto`, or `optim.lr=0.1`; only the name without a value."""
        flag, value = FLAGS.get(setting.key), setting.value
        key = f"{setting.within}.{setting.key}" if setting.within else setting.key
        if value is NO_VALUE or (flag and value is True):
            return flag or key
        return f"{flag} {value}" if flag else f"{key}={_format_value(value)}"


COMMAND_LINE = CommandLineEdge()


def _format_value(value: Any) -> str:
    """Write a value as YAML in one word: null, true, [a,b]."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_format_value, value))}]"
    return str(value)
