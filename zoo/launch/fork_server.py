"""A process that has imported everything and forks one process for each cell.

Importing torch and Lightning takes longer than a small cell trains. The fork server imports them
once, trains nothing, and forks a process whenever a cell is to begin, so that a cell starts in
about a second. A worker that ran one cell after another would start as quickly, but every cell
would inherit what the one before has left: random states, thread counts, handlers of signals and
logs, caches, environment variables. A forked process inherits only imported modules, as if it had
imported them itself. Cells are independent by construction, and a crash ends one cell alone.

A fork copies the calling thread only, so the server must run no other thread on which a cell
depends: it computes nothing (torch starts its threads at the first parallel operation), touches no
GPU and renders no figure. The one pool there is, that of NumPy's OpenBLAS, is stopped before a fork
and started again by OpenBLAS itself. Elsewhere than on Linux, and where cells use a GPU, whose
context no fork survives, each cell is a new process.

The parent and the server talk through sockets. The parent sends each cell over the control socket,
together with two descriptors: a channel of the cell's own, on which the server answers with process
id and exit code, and the standard input that ties the cell to the parent.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from zoo.errors import ZooError
from zoo.launch.executor import OUTPUT, CellProcess, Resources, make_run_dir

# what a cell imports late, beside what its command imports
PRELOADED = (
    "omegaconf",
    "torch.utils.tensorboard",
    "zoo.comparison.runner",
    "zoo.diagnosis.training_curves",
    "zoo.reporting.charts",
    "zoo.reporting.render",
)
MESSAGE_BYTES = 65_536
REAP_SECONDS = 0.05
# of a cell that the server has not begun, because it has ended
NEVER_BEGUN = 256


def find_obstacle(resources: Resources) -> str | None:
    """Return why cells cannot be forked off a server; None where they can."""
    if resources.gpus:
        return "a GPU cannot be used after a fork"
    if sys.platform != "linux":
        return f"a fork is not safe on {sys.platform}"
    return None


class ForkServer:
    """The parent's side: starts the server and has it fork cells.

    Args:
        folder: The working directory of the server.
    """

    def __init__(self, folder: Path) -> None:
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "zoo", "compare", "--fork-server"],
                cwd=folder,
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        """Return whether the server still runs."""
        return self.process.poll() is None

    def start(self, cell: CellProcess) -> ForkedCell:
        """Ask for a cell and return at once, also while the server is still importing."""
        make_run_dir(cell.folder / cell.run)
        channel, other = socket.socketpair()
        reading, writing = os.pipe()
        request = json.dumps({"run": str(cell.run), "folder": str(cell.folder)}).encode()
        try:
            # a server that has ended is noticed by the end of the channel
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self.control, [request], [other.fileno(), reading])
        finally:
            other.close()
            os.close(reading)
        return ForkedCell(channel, os.fdopen(writing, "wb", buffering=0))

    def close(self) -> None:
        """Close the server, which ends once its cells have, and wait for it."""
        self.control.close()
        self.process.wait()


class ForkedCell:
    """The process of a cell: what matters here of a `subprocess.Popen`."""

    def __init__(self, channel: socket.socket, stdin: IO[bytes]) -> None:
        self.channel, self.stdin = channel, stdin
        self.pid: int | None = None
        self.code: int | None = None
        self._received = b""
        self._lock = threading.Lock()
        channel.setblocking(False)

    def poll(self) -> int | None:
        """Return the exit code once there is one, negative for the signal that ended it."""
        with self._lock:
            return self._poll()

    def send_signal(self, number: int) -> None:
        """Send a signal; a cell that has not been forked yet is withdrawn."""
        with self._lock:
            if self._poll() is not None:
                return
            if self.pid is None:
                self._end(-number)
                # should it be forked at this very moment, it ends by this
                self.stdin.close()
            else:
                # the server reaps it only after the channel is closed: the id is still its own
                os.kill(self.pid, number)

    def _poll(self) -> int | None:
        if self.code is not None:
            return self.code
        has_ended = False
        with contextlib.suppress(BlockingIOError):
            while not has_ended:
                try:
                    data = self.channel.recv(64)
                except ConnectionResetError:
                    data = b""
                self._received += data
                has_ended = not data

        # lines: the process id, then the exit code
        lines = self._received.decode().split("\n")[:-1]
        if lines:
            self.pid = int(lines[0])
        if len(lines) > 1:
            self._end(int(lines[1]))
        elif has_ended:
            # the server was killed. Nobody knows the code of a cell that has run on until its end
            self._end(NEVER_BEGUN if self.pid is None else 1)
        return self.code

    def _end(self, code: int) -> None:
        self.code = code
        self.channel.close()


@dataclass
class _Child:
    """A forked cell, seen from the server."""

    channel: socket.socket
    reported: bool = False

    def report(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self.channel.send(f"{number}\n".encode())


def serve() -> Path | None:
    """Fork a process for each cell that the other end of standard input asks for.

    `utils.die_with_parent` comes before: importing this module and what follows takes seconds.

    Returns:
        In the process of a cell: its run directory, to be run by the caller. In the server: None,
        once the other end is closed and all cells have ended.

    Raises:
        ZooError: A thread runs that a fork would not copy.
    """
    for name in PRELOADED:
        importlib.import_module(name)
    if threading.active_count() > 1:
        names = [thread.name for thread in threading.enumerate()]
        raise ZooError(f"threads run before the first fork: {', '.join(names)}")

    control: socket.socket | None = socket.socket(fileno=os.dup(0))
    children: dict[int, _Child] = {}
    while control is not None or children:
        reported = [child.channel for child in children.values() if child.reported]
        listening = reported if control is None else [control, *reported]
        ready, _, _ = select.select(listening, [], [], REAP_SECONDS if children else None)
        _reap(children, ready)
        if control is None or control not in ready:
            continue

        message, descriptors = _receive(control)
        if not message:
            control.close()
            control = None
            continue
        channel, stdin = socket.socket(fileno=descriptors[0]), descriptors[1]
        pid = os.fork()
        if pid == 0:
            control.close()
            for child in children.values():
                child.channel.close()
            # it stays open as long as this process: should the server be killed, the parent learns
            # the end of the cell by the end of the channel
            channel.detach()
            return _become_cell(json.loads(message), stdin)
        os.close(stdin)
        children[pid] = _Child(channel)
        children[pid].report(pid)
    return None


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and its descriptors; an empty one once the other end is closed."""
    try:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2)
    except ConnectionResetError:
        return b"", []
    return message, descriptors


def _reap(children: dict[int, _Child], ready: list[socket.socket]) -> None:
    """Report exit codes, and let go of processes whose code the parent has received."""
    for pid, child in [*children.items()]:
        if not child.reported:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                is_exit = found.si_code == os.CLD_EXITED
                child.report(found.si_status if is_exit else -found.si_status)
                child.reported = True
        elif child.channel in ready:
            os.waitpid(pid, 0)
            child.channel.close()
            del children[pid]


def _become_cell(request: dict[str, str], stdin: int) -> Path:
    """Give a forked process what a new process would have been started with."""
    run = Path(request["run"])
    os.setsid()
    os.chdir(request["folder"])
    os.dup2(stdin, 0)
    os.close(stdin)
    with (run / OUTPUT).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    return run
