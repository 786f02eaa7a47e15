"""The process and the state of one cell, and the interface of executors, which run several."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM, Signals
from typing import IO, Literal, Protocol, get_args

from zoo import files
from zoo.run import run_dir

State = Literal["done", "running", "waiting", "stopped", "failed"]


POLL_SECONDS = 0.1
STATE, OUTPUT = "cell.json", "output.log"
# for a process whose parent was killed to save its state and end
PATIENCE = 60.0
TAIL_BYTES = 4096
MAX_LINES = 3
MAX_LETTERS = 600


@dataclass(frozen=True)
class Resources:
    """How many cells run at the same time, and the CPU threads and GPUs of each."""

    jobs: int
    threads: int
    gpus: int


@dataclass(frozen=True)
class CellProcess:
    """`zoo compare --cell RUN`, started in `folder`. A call waits for its exit code."""

    run: Path
    folder: Path

    def start(self, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start the process in a group of its own, so that no signal of a terminal reaches it.

        When its standard input is closed, as when its parent is killed, it saves its state and
        ends.

        Args:
            environment: Further environment variables.
        """
        command = [sys.executable, "-m", "zoo", "compare", "--cell", str(self.run), "--tied"]
        run = make_run_dir(self.folder / self.run)
        with (run / OUTPUT).open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __call__(self) -> int:
        process = self.start()
        try:
            return wait_for_exit(process)
        finally:
            # if an executor interrupts this, the cell saves what it has
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(SIGTERM)
                wait_for_exit(process)


class RunningProcess(Protocol):
    """The process of a cell: what matters here of a `subprocess.Popen`."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """The pipe whose end tells it that its parent has ended."""
        ...

    def poll(self) -> int | None:
        """Return the exit code once there is one, negative for the signal that ended it."""
        ...

    def send_signal(self, signal: int, /) -> None: ...


def wait_for_exit(process: RunningProcess) -> int:
    """Return the exit code of a cell's process, once there is one.

    It is polled: Ray interrupts a task between two lines of Python, not by a signal that would
    end a wait.
    """
    while (code := process.poll()) is None:
        time.sleep(POLL_SECONDS)
    if process.stdin is not None:
        process.stdin.close()
    return code


class CellHandle(Protocol):
    """A cell that was given to an executor: what matters here of a `concurrent.futures.Future`."""

    def running(self) -> bool: ...

    def done(self) -> bool: ...

    def cancelled(self) -> bool:
        """Return whether it was never started."""
        ...

    def result(self) -> int:
        """Return the exit code of its process. Raises whatever has lost it."""
        ...


class Executor(Protocol):
    """A registered executor; its keyword-only arguments are options."""

    is_local: bool
    """Whether cells run on this machine, so that what they need must be here."""
    handles: Sequence[CellHandle]
    """Those of all cells that were given to it so far, in their order."""

    def plan_resources(self, cells: int, jobs: int | None, gpus: int) -> Resources:
        """Choose how many cells run at once, and the resources of each.

        Args:
            cells: How many there are.
            jobs: How many run at once; None for as many as is best.
            gpus: How many GPUs each of them asks for.

        Raises:
            RecipeError: Something that the executor needs is not installed.
        """
        ...

    def start(self, processes: Sequence[CellProcess], resources: Resources) -> None:
        """Start the processes, or queue them."""
        ...

    def stop(self, signal: Signals) -> None:
        """Begin no more of them; those that run save their state and end."""
        ...


def write_state(run: Path, state: State, error: str = "") -> None:
    """Write the state that remains when no process works on a cell any more."""
    text = json.dumps({"state": state, "error": error}) + "\n"
    files.write(io.BytesIO(text.encode()), run / STATE)


def read_state(run: Path) -> tuple[State, str]:
    """Return the state of a cell, and why it failed."""
    try:
        found = json.loads((run / STATE).read_text(encoding="utf-8"))
        is_known = found["state"] in get_args(State)
        return (found["state"], str(found["error"])) if is_known else ("stopped", "")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        return "stopped", ""
    if not run.is_dir():
        return "waiting", ""
    return ("running" if run_dir.is_locked(run) else "stopped"), ""


def make_run_dir(run: Path) -> Path:
    """Make a run directory that a run can still begin in."""
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    return run


def describe_failure(run: Path, code: int) -> str:
    """Describe why a process failed: its exit code or signal, and its last lines of output."""
    end = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    try:
        with (run / OUTPUT).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    lines = [line for line in lines if line.strip()]

    # zoo's own message, if the process could still write one
    starts = [number for number, line in enumerate(lines) if line.startswith("zoo: ")]
    lines = lines[starts[-1] :][:MAX_LINES] if starts else lines[-MAX_LINES:]
    words = [line.strip().removeprefix("zoo: ") for line in lines]
    return f"{end}: {' '.join(words)}"[:MAX_LETTERS] if words else end
