"""Errors, and the exit code of each kind on the command line.

A message may name an option (`Setting`). It does not know whether a Python program or the command
line will read it: `spell` writes it for either edge, and `str` writes it for Python.
"""

from __future__ import annotations

import json
import os
import reprlib
import unicodedata
from dataclasses import dataclass
from typing import Any, Protocol

ARGUMENT = "argument"
"""The origin of a value that the caller passed, in contrast to `file:line`."""
NO_VALUE: Any = object()
UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories: control, format, surrogates, line and paragraph separators."""


def escape_text(text: str, keep: str = "") -> str:
    r"""Escape characters that a terminal or a page would obey rather than show, as in \x1b.

    These are control characters such as escape sequences and line ends, marks that change the
    direction of text, and bytes of a file name that are not UTF-8.

    Args:
        text: Text that is not trusted, such as the name of a file or a class.
        keep: Characters that are left unchanged.
    """
    # printable characters are of no such category
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if character not in keep and unicodedata.category(character) in UNSAFE
        else character
        for character in text
    )


@dataclass(frozen=True)
class Setting:
    """An option that a message names, with the value it should have, if any.

    Attributes:
        key: The name of the argument in Python, such as `run_dir`, or a key of the recipe, such
            as `optim.lr`.
        value: What to set it to; without one, the message names the option only.
        within: The argument that maps keys to values, such as `vary`, if the key is one of its
            entries.
    """

    key: str
    value: Any = NO_VALUE
    within: str = ""


class Edge(Protocol):
    """A reader of messages: a Python program or the command line."""

    origin: str
    """What an origin `ARGUMENT` reads as."""

    def spell(self, setting: Setting) -> str:
        """Return how a user of this edge writes a setting."""


class PythonEdge:
    """Spell settings as arguments of a function, keys of a recipe as entries of a mapping."""

    origin = ARGUMENT

    def spell(self, setting: Setting) -> str:
        """Return `resume="auto"`, or `{"optim.lr": 0.1}` for a key of a recipe."""
        if setting.within:
            return f"{setting.within}={repr_entry(setting)}"
        if setting.key == "plugin":
            # a plug-in registers its names when it is imported
            return f"import {setting.value}"
        if "." in setting.key:
            return f'"{setting.key}"' if setting.value is NO_VALUE else repr_entry(setting)
        if setting.value is NO_VALUE:
            return setting.key
        return f"{setting.key}={_quote(setting.value)}"


PYTHON = PythonEdge()


def repr_entry(setting: Setting) -> str:
    """Return a setting as a Python mapping of one entry, texts in double quotes."""
    return f'{{"{setting.key}": {_quote(setting.value)}}}'


def _quote(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_quote, value))}]"
    # double quotes, as in the documentation; json escapes those within the text
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


class Message:
    """Text with settings in it, which each edge spells its own way.

    Args:
        parts: Strings, settings, and other messages, in order.
    """

    def __init__(self, *parts: str | Setting | Message) -> None:
        flat: list[str | Setting] = []
        for part in parts:
            flat += part.parts if isinstance(part, Message) else [part]
        self.parts: tuple[str | Setting, ...] = tuple(flat)

    def spell(self, edge: Edge) -> str:
        """Return the text as a user of an edge reads it, of which only line ends are obeyed."""
        text = "".join(
            edge.spell(part) if isinstance(part, Setting) else part for part in self.parts
        )
        return escape_text(text, keep="\n\t")

    def __str__(self) -> str:
        return self.spell(PYTHON)

    def __bool__(self) -> bool:
        return any(self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.parts == other.parts

    def __hash__(self) -> int:
        # by its text: the value of a setting may be a list, which has no hash
        return hash(str(self))


def spell(text: str | Message, edge: Edge) -> str:
    """Return a string or a message as a user of an edge reads it."""
    return text.spell(edge) if isinstance(text, Message) else text


class ZooError(Exception):
    """A failure that the user reads as one message, without a traceback.

    Args:
        parts: The problem, as of `Message`.
        place: The file or folder that it is about, which the message names first.
        separator: What stands between place and problem.
    """

    code = 1

    def __init__(
        self,
        *parts: str | Setting | Message,
        place: str | os.PathLike[str] = "",
        separator: str = ": ",
    ) -> None:
        self.place, self.problem = os.fspath(place), Message(*parts)
        before = (f"{escape_text(self.place)}{separator}",) if self.place else ()
        self.message = Message(*before, self.problem)
        super().__init__(str(self.message))

    def spell(self, edge: Edge) -> str:
        """Return the message as a user of an edge reads it."""
        return self.message.spell(edge)

    def __str__(self) -> str:
        return self.spell(PYTHON)


class OptionError(ValueError):
    """An option has a value that cannot work; `key` names it, relative to whoever raises.

    Args:
        key: The option.
        parts: The problem, as of `Message`; a remedy may follow after a semicolon.
        remedy: What would be right, for whoever may replace it by another one.
        subject: The member, such as an encoding, that the problem begins with.
    """

    def __init__(
        self, key: str, *parts: str | Setting | Message, remedy: str = "", subject: str = ""
    ) -> None:
        self.key, self.subject = key, subject
        self.problem = Message(*parts)
        self.message = Message(self.problem, "; ", remedy) if remedy else self.problem
        super().__init__(str(self.message))


def refuse_type(key: str, value: object, noun: str) -> OptionError:
    """Return the error of an argument of a wrong type.

    Args:
        key: The name of the argument.
        value: Its value.
        noun: What it should be, such as "a model".
    """
    return OptionError(key, f"{key}: expected {noun}, got {reprlib.repr(value)}")


@dataclass(frozen=True)
class ConfigIssue:
    """One issue of a recipe or an argument.

    Attributes:
        origin: Where the value was given: `file:line`, a file, or `ARGUMENT`.
        key: Its full key, such as `model.dim`; empty where no key is concerned.
        problem: What is wrong.
        remedy: What would be right, where it is known.
        subject: Which of several things it is about, such as variants of a comparison.
    """

    origin: str
    key: str
    problem: str | Message
    remedy: str | Message = ""
    subject: str = ""

    def spell(self, edge: Edge) -> str:
        """Return the issue on one line, as a user of an edge reads it."""
        is_argument = self.origin == ARGUMENT
        origin = edge.origin if is_argument else self.origin
        # an argument is named as it was written, a key of a recipe by its path
        key = edge.spell(Setting(self.key)) if is_argument and "." not in self.key else self.key
        parts = (self.subject, origin, key, spell(self.problem, edge))
        text = ": ".join(part for part in parts if part)
        text = f"{text}; {spell(self.remedy, edge)}" if self.remedy else text
        return escape_text(text, keep="\n\t")

    def __str__(self) -> str:
        return self.spell(PYTHON)


class RecipeError(ZooError):
    """A recipe or the arguments are wrong and nothing was started; carries every issue found."""

    code = 2

    def __init__(self, *issues: ConfigIssue) -> None:
        self.issues = issues
        super().__init__()

    def spell(self, edge: Edge) -> str:
        """Return all issues, one a line, as a user of an edge reads them."""
        count = "1 config error" if len(self.issues) == 1 else f"{len(self.issues)} config errors"
        lines = [f"{count}, nothing was started"]
        return "\n".join([*lines, *(f"  {issue.spell(edge)}" for issue in self.issues)])


class NonFiniteError(ZooError):
    """A loss, gradient or weight became non-finite; training stopped before the optimizer step."""

    code = 3


class DataError(ZooError):
    """Data is missing or unreadable; the message names the file."""

    code = 4


class CheckpointError(ZooError):
    """A checkpoint is missing, corrupt, unsafe, or of another recipe or version.

    The message says which, and which checkpoints are still good.
    """

    code = 5


class AlreadyReported(ZooError):
    """Another process has reported the failure; this one only has its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__("")
        self.code = code


class Stopped(ZooError):
    """A signal stopped the run after its state was saved. `code` is 128 + signal, as in a shell."""

    def __init__(self, signal: int, *parts: str | Setting | Message) -> None:
        super().__init__(*parts)
        self.code = 128 + signal
