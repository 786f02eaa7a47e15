"""What can go wrong, and the exit code that each kind of failure has on the command line."""

from __future__ import annotations

from dataclasses import dataclass


class ZooError(Exception):
    """A failure that the user reads as one message, without a traceback."""

    code = 1


class OptionError(ValueError):
    """An option has a value that cannot work; `key` names it, relative to whoever raises."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class ConfigIssue:
    """One issue of a recipe or an argument.

    Attributes:
        location: Where it was given: `file:line`, "command line" or a file.
        key: Its full key, such as `model.dim`; empty where no key is concerned.
        problem: What is wrong.
        remedy: What would be right, where it is known.
    """

    location: str
    key: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.location, self.key, self.problem) if part)
        return f"{text}; {self.remedy}" if self.remedy else text


class RecipeError(ZooError):
    """A recipe or the arguments are wrong and nothing was started; carries every issue found."""

    code = 2

    def __init__(self, *issues: ConfigIssue) -> None:
        self.issues = issues
        count = "1 config error" if len(issues) == 1 else f"{len(issues)} config errors"
        super().__init__(
            "\n".join([f"{count}, nothing was started", *(f"  {issue}" for issue in issues)])
        )


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

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + signal
