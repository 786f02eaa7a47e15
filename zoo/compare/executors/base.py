"""The process that makes one cell, whatever runs it, and what an engine makes of several."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Protocol

from zoo.compare import status

PAUSE = 0.1  # seconds between looks at a process


@dataclass(frozen=True)
class Resources:
    """How many cells run at the same time, and the processors' threads and GPUs that each has use for."""

    jobs: int
    threads: int
    gpus: int


@dataclass(frozen=True)
class CellProcess:
    """`zoo compare --cell RUN` in `folder`. Called, it waits for its end and gives the exit code."""

    run: Path
    folder: Path

    def start(self, more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """The process, in a group of its own: a terminal's signals reach it through whoever started it alone.

        It ends, in good order, when its standard input is closed, as where that one is killed.
        """
        command = [sys.executable, "-m", "zoo", "compare", "--cell", str(self.run), "--tied"]
        around = {**os.environ, **(more or {})}
        with (status.make_run_dir(self.folder / self.run) / status.OUTPUT).open("ab") as told:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=around,
                stdin=subprocess.PIPE,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )

    def __call__(self) -> int:
        process = self.start()
        try:
            return wait_for_exit(process)
        finally:  # where an engine breaks this off: the cell saves what it has
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(SIGTERM)
                wait_for_exit(process)


def wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a cell's process, once there is one: looked for again and again, since Ray breaks a task off between two
    lines of Python, and by no signal that would end a wait.
    """
    while (code := process.poll()) is None:
        time.sleep(PAUSE)
    if process.stdin is not None:
        process.stdin.close()
    return code


class CellHandle(Protocol):
    """A cell that was given to an engine."""

    def running(self) -> bool: ...

    def done(self) -> bool: ...

    def cancelled(self) -> bool:
        """Whether it was never begun."""
        ...

    def result(self) -> int:
        """The exit code of its process. Raises whatever has lost it."""
        ...


class Executor(Protocol):
    """A member of `zoo/compare/engines`; its keyword-only arguments are options of `zoo compare`."""

    is_local: bool  # whether cells run on this machine, so that what they need must be there
    handles: Sequence[CellHandle]  # of the tasks that were given to it so far, in their order

    def plan_resources(self, cells: int, jobs: int | None, gpus: int) -> Resources:
        """For so many cells, each of which asks for so many GPUs; `jobs` None: as many at once as is best.

        Raises RecipeError where what it is made of is not installed.
        """
        ...

    def start(self, tasks: Sequence[CellProcess], needs: Resources) -> None:
        """Give it tasks, one after another."""
        ...

    def stop(self, signal: Signals) -> None:
        """Begin no more, and have those that run save their state and end."""
        ...
