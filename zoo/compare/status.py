"""The state of a cell: what `cell.json` says of it, and whether a process works on it now."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, get_args

from zoo.compare.results import State
from zoo.errors import ZooError
from zoo.run import atomic_io

STATE, LOCK, OUTPUT = "cell.json", ".lock", "output.log"
# for a process whose parent was killed to save its state and end
PATIENCE = 60.0
TAIL_BYTES = 4096
MAX_LINES = 3
MAX_LETTERS = 600


def write(run: Path, state: State, error: str = "") -> None:
    """Write the state that remains when no process works on a cell any more."""
    text = json.dumps({"state": state, "error": error}) + "\n"
    atomic_io.write(io.BytesIO(text.encode()), run / STATE)


def read(run: Path) -> tuple[State, str]:
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
    return ("running" if is_locked(run) else "stopped"), ""


def make_run_dir(run: Path) -> Path:
    """Make a run directory that a run can still begin in."""
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    return run


@contextlib.contextmanager
def lock(folder: Path, message: str, patience: float = 0.0, name: str = LOCK) -> Iterator[None]:
    """Lock a folder for this process.

    Raises:
        ZooError: Another process has it, also after `patience` seconds; with the message.
    """
    end = time.monotonic() + patience
    with (folder / name).open("a") as file:
        while not _try_lock(file):
            if time.monotonic() > end:
                raise ZooError(f"{folder}: {message}")
            time.sleep(0.1)
        yield


def is_locked(folder: Path) -> bool:
    """Tell whether another process has a folder."""
    if not (folder / LOCK).exists():
        return False
    with (folder / LOCK).open("a") as file:
        return not _try_lock(file)


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def describe_failure(run: Path, code: int) -> str:
    """Say why a process failed: its exit code or signal, and the last lines of its output."""
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
