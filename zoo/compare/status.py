"""The state of a cell: what `cell.json` says of it, and whether a process works on it now."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import get_args

from zoo.compare.results import State
from zoo.run import atomic_io, run_dir

STATE, OUTPUT = "cell.json", "output.log"
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
    return ("running" if run_dir.is_locked(run) else "stopped"), ""


def make_run_dir(run: Path) -> Path:
    """Make a run directory that a run can still begin in."""
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    return run


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
