"""The state of a cell: what `cell.json` says of it, and whether a process works at it now."""

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
PATIENCE = 60.0  # seconds for a process before this one, whose driver is gone, to save and end
LINES = 3  # of the output, that tell why a process failed


def write(run: Path, state: State, fault: str = "") -> None:
    """Done, failed or stopped: what is left when no process works at it any more."""
    text = json.dumps({"state": state, "fault": fault}) + "\n"
    atomic_io.write(io.BytesIO(text.encode()), run / STATE)


def read(run: Path) -> tuple[State, str]:
    """State and fault."""
    try:
        found = json.loads((run / STATE).read_text(encoding="utf-8"))
        return (
            (found["state"], str(found["fault"]))
            if found["state"] in get_args(State)
            else ("stopped", "")
        )
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        return "stopped", ""
    if not run.is_dir():
        return "waiting", ""
    return ("running" if is_locked(run) else "stopped"), ""


def make_run_dir(run: Path) -> Path:
    """The run directory, in which a run can still begin."""
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    return run


@contextlib.contextmanager
def lock(folder: Path, message: str, patience: float = 0.0, name: str = LOCK) -> Iterator[None]:
    """Have a folder for this process alone. Raises ZooError where another one has it, after waiting for so long."""
    ends = time.monotonic() + patience
    with (folder / name).open("a") as file:
        while not _try_lock(file):
            if time.monotonic() > ends:
                raise ZooError(f"{folder}: {message}")
            time.sleep(0.1)
        yield


def is_locked(folder: Path) -> bool:
    """Whether another process has a folder."""
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
    """Why a process failed: its exit code, or the signal that ended it, and the last lines that it told."""
    ended = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    try:
        with (run / OUTPUT).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    lines = [line for line in lines if line.strip()]
    said = [
        number for number, line in enumerate(lines) if line.startswith("zoo: ")
    ]  # of its end, by itself
    told = [
        line.strip().removeprefix("zoo: ")
        for line in (lines[said[-1] :][:LINES] if said else lines[-LINES:])
    ]
    return f"{ended}: {' '.join(told)}"[:600] if told else ended
