"""What can go wrong, and the exit code that each kind of failure has on the command line."""

from __future__ import annotations

from dataclasses import dataclass


class ZooError(Exception):
    """A failure that is told to the user in plain words, without a traceback."""

    code = 1


class OptionError(ValueError):
    """An option has a value that cannot work. `key` names the option, relative to whoever raises."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class ConfigIssue:
    """One fault of a recipe or an argument: where it stands, which key, what is wrong and what would be right."""

    place: str
    key: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        told = ": ".join(part for part in (self.place, self.key, self.problem) if part)
        return f"{told}; {self.remedy}" if self.remedy else told


class RecipeError(ZooError):
    """A recipe or the arguments are wrong: nothing was started. Carries every fault that was found."""

    code = 2

    def __init__(self, *faults: ConfigIssue) -> None:
        self.faults = faults
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__(
            "\n".join([f"{count}, nothing was started", *(f"  {fault}" for fault in faults)])
        )


class NonFiniteError(ZooError):
    """A loss, gradient or weight became infinite or NaN; training stopped before the optimiser used it."""

    code = 3


class DataError(ZooError):
    """Data is missing or unreadable; the message names the file."""

    code = 4


class CheckpointError(ZooError):
    """A checkpoint is missing, corrupt, unsafe or of another recipe; the message says which and what is still good."""

    code = 5


class Told(ZooError):
    """Another process has said what went wrong; only the exit code is left to say."""

    def __init__(self, code: int) -> None:
        super().__init__("")
        self.code = code


class Stopped(ZooError):
    """A signal asked the run to stop; its state was saved first. `code` follows the shell: 128 + signal."""

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + signal
