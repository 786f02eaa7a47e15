"""The process and the state of one cell, and the interface of executors, which run several."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from types import ModuleType
from typing import Literal, NoReturn, Protocol, get_args

from zoo.errors import DataError
from zoo.run import run_dir
from zoo.utils import format_now, limit_spinning, open_own, read_object, write_file

State = Literal["done", "running", "waiting", "stopped", "failed"]
StartMethod = Literal["forkserver", "spawn"]

# the module whose `run_cell` gives a cell the log and the exit codes of a command
ENTRY = "zoo.cli.worker"
# what cells import, late imports included, in addition to the module of their work
PRELOADED = (
    ENTRY,
    "omegaconf",
    "torch.utils.tensorboard",
    "zoo.diagnosis.training_curves",
    "zoo.reporting.charts",
    "zoo.reporting.render",
)
# Starting a process polls all others, and of two threads that poll one, the second is told LOST.
BOOKKEEPING = threading.Lock()
# exit code that `multiprocessing` reports of the processes of a killed fork server
LOST = 255
# to start a process while a killed fork server is being reaped
ATTEMPTS = 50
# for a process without a parent to save its state
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.1
STATE, OUTPUT = "cell.json", "output.log"
BEGUN = "=== begun"
"""What a line of the output begins with where another attempt does."""
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
    """The process that runs a cell, started in `folder`. A call waits for its exit code.

    Attributes:
        run: The run directory.
        folder: The folder in which the process starts.
        work: What is done there, `module:function` of the run directory.
    """

    run: Path
    folder: Path
    work: str

    def start(
        self, method: StartMethod = "spawn", environment: Mapping[str, str] | None = None
    ) -> RunningCell:
        """Start the process in a session of its own, so that no signal of a terminal reaches it.

        When its parent is killed, it saves its state and ends.

        Args:
            method: `forkserver` forks it off a process that has imported what cells import and
                trains nothing; `spawn` starts Python anew, which takes seconds.
            environment: Further environment variables.
        """
        run = make_run_dir(self.folder / self.run)
        with open_own(run / OUTPUT) as output:
            # of an earlier attempt, whose message is not that of this one
            if output.tell():
                output.write(f"{BEGUN} {format_now()}\n".encode())
        # OpenMP reads it when torch is loaded, in the fork server before there is a cell
        limit_spinning()
        context: ForkServerContext | SpawnContext = get_context("spawn")
        if method == "forkserver":
            context = get_context("forkserver")
            context.set_forkserver_preload([*PRELOADED, self.work.partition(":")[0]])
        arguments = (
            self.run,
            self.folder,
            self.work,
            {**os.environ, **(environment or {})},
            multiprocessing.get_start_method(allow_none=True),
        )
        with BOOKKEEPING, _block_interrupts(), _hide_main_module():
            for attempt in range(ATTEMPTS):
                process = context.Process(target=_run_cell, args=arguments)
                try:
                    process.start()
                except (EOFError, ConnectionError):
                    # The fork server was killed. Another one takes its place once it is reaped.
                    if attempt == ATTEMPTS - 1:
                        raise
                    time.sleep(POLL_SECONDS)
                else:
                    break
        return RunningCell(process, run)

    def __call__(self) -> int:
        running = self.start()
        try:
            return running.wait()
        finally:
            # if an executor interrupts this, the cell saves what it has
            if running.poll() is None:
                running.send_signal(SIGTERM)
                running.wait()


class RunningCell:
    """The process of a cell that has begun.

    Args:
        process: A process of `multiprocessing` that was started.
        run: The run directory.
    """

    def __init__(self, process: BaseProcess, run: Path) -> None:
        self.process, self.run = process, run

    def poll(self) -> int | None:
        """Return the exit code once there is one, negative for the signal that ended it."""
        with BOOKKEEPING:
            code = self.process.exitcode
        # The cells of a killed fork server run on; only their codes are lost.
        return None if code == LOST and run_dir.is_locked(self.run) else code

    def wait(self) -> int:
        """Return the exit code, once there is one.

        It is polled, so that a signal ends the wait between two lines of Python.
        """
        while (code := self.poll()) is None:
            time.sleep(POLL_SECONDS)
        return code

    def send_signal(self, signal: int) -> None:
        """Send a signal unless the process has ended."""
        pid = self.process.pid
        if pid is not None and self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal)


@contextlib.contextmanager
def _block_interrupts() -> Iterator[None]:
    """Make processes that start in the block begin with SIGINT blocked.

    They belong to the group that a terminal interrupts until they have a session of their own.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _hide_main_module() -> Iterator[None]:
    """Keep `multiprocessing` from running the caller's script again in processes of the block.

    A script without `if __name__ == "__main__"` would compare there once more.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _run_cell(
    run: Path, folder: Path, work: str, environment: Mapping[str, str], start_method: str | None
) -> NoReturn:
    """Run a cell in this process, which was started for it, and exit."""
    os.setsid()
    os.chdir(folder)
    # the fork server has the variables of the moment when it started
    os.environ.clear()
    os.environ.update(environment)
    # workers of data loaders start as they would in the parent
    multiprocessing.set_start_method(start_method, force=True)
    with open_own(run / OUTPUT) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    _end_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [SIGINT])

    code = importlib.import_module(ENTRY).run_cell(run, work)
    # loggers register their end here, which a process of `multiprocessing` skips
    atexit._run_exitfuncs()
    sys.exit(code)


def _end_with_parent() -> None:
    """End this process soon after its parent.

    A parent that is killed cannot pass that on. SIGTERM comes first, so that a run can save its
    state. Whatever is left of the process group after `GRACE_SECONDS` is killed: a run in the
    middle of a long step resumes from its last checkpoint.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), SIGTERM)
        time.sleep(GRACE_SECONDS)
        # 0 is its own process group, to which the workers of loaders belong
        os.killpg(0, SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


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
    content = json.dumps({"state": state, "error": error}) + "\n"
    write_file(io.BytesIO(content.encode()), run / STATE)


def read_state(run: Path) -> tuple[State, str]:
    """Return the state of a cell, and why it failed. Raises DataError if its file is damaged."""
    if os.path.lexists(run / STATE):
        message = "holds no state of a cell"
        entries = read_object(run / STATE, message)
        if entries.get("state") not in get_args(State) or not isinstance(entries.get("error"), str):
            raise DataError(f"{run / STATE}: {message}")
        return entries["state"], entries["error"]
    if not run.is_dir():
        return "waiting", ""
    # a process holds the lock of its run directory as long as it lives
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
    # an attempt that left no message has not that of the one before
    begins = [number for number, line in enumerate(lines) if line.startswith(BEGUN)]
    lines = lines[begins[-1] + 1 :] if begins else lines
    lines = [line for line in lines if line.strip()]

    # zoo's own message, if the process could still write one
    starts = [number for number, line in enumerate(lines) if line.startswith("zoo: ")]
    lines = lines[starts[-1] :][:MAX_LINES] if starts else lines[-MAX_LINES:]
    shown = [line.strip().removeprefix("zoo: ") for line in lines]
    return f"{end}: {' '.join(shown)}"[:MAX_LETTERS] if shown else end
