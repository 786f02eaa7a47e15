"""Helpers around the operating system: CPU settings, safe writes, signals, times, progress."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import logging
import os
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from signal import SIG_IGN, SIGINT, SIGKILL, SIGTERM, Signals
from types import FrameType
from typing import IO, Any, TypeVar

from zoo.errors import DataError, Message, Setting, ZooError
from zoo.errors import escape_text as escape_text

# glibc's mallopt: free bytes at a heap's end before they are returned to the system, bytes
# requested from the system at once, and the size from which an allocation is a mapping of its
# own, at most 32 MiB
TRIM, PAD, MAPPED = (-1, 2**31 - 1), (-2, 2**26), (-3, 2**25)
# tests of a barrier before an OpenMP thread sleeps; libgomp's own default is 300,000 or more
SPIN_COUNT = "10000"

MALLOC_CHOICES = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")

WRITE_TEST_BYTES = 2**14
WRITING = ".writing"  # suffix of an unfinished file
WRITE_TEST = ".zoo-write-test-"  # prefix of the name of a file that is created and removed
log = logging.getLogger("zoo")

MAX_CAUSE = 200
"""Number of characters of a library's message that are shown."""
PANIC = "PanicException"
"""The error of a library written in Rust that has failed an assertion, which is no Exception."""
Key = TypeVar("Key")

LATEST = "latest"
"""The file next to run directories that has the name of the newest of them.

It was a link until version 0.3. TensorBoard follows links, and showed each run twice.
"""

WATCH_SECONDS = 1.0

OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "out of shared memory",
    "DataLoader worker (pid",
)
"""What a RuntimeError says for want of memory: of the allocator of a CPU or a GPU, or of a worker
of a data loader that the system has killed."""

INTERVAL = 10.0
"""Seconds between progress lines where there is no terminal."""


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Shorten the spinning of OpenMP threads at barriers, unless the user chose how they wait.

    Call it before torch is imported, since OpenMP reads the variables when it is loaded. By default
    threads spin for long, even while the thread they wait for is not scheduled: next to busy
    processes, two threads make 0.4 training steps a second in place of 5. Threads that sleep at
    once (OMP_WAIT_POLICY=passive) take half of the speed of an idle machine, where a tiny model
    passes a barrier every few microseconds.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Keep freed memory for the next allocation; return if the allocator does so.

    A training step allocates what the one before it has freed. If that memory went back to the
    system, each page would be cleared again at its first use, a tenth of a step on a CPU or more.
    Nothing changes where the user has chosen an allocator or its options, or without glibc.
    """
    if any(name.startswith(MALLOC_CHOICES) for name in environment):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return mallopt is not None and all(mallopt(*option) for option in (TRIM, PAD, MAPPED))


def describe_absence(path: str | os.PathLike[str], what: str = "file or folder") -> str:
    """Return that there is no such file, with the folder that was searched for it.

    Where a folder was asked for and the path is that of a file, or the other way round, say that.
    """
    place = Path(os.path.abspath(path))
    if what == "folder" and place.is_file():
        return "it is a file, not a folder"
    if what == "file" and place.is_dir():
        return "it is a folder, not a file"
    folder = place.parent
    if folder.is_dir():
        return f"no such {what} in {folder}"
    above = next((one for one in folder.parents if one.is_dir()), Path("/"))
    return f"no such {what}, there is no {folder.relative_to(above).parts[0]} in {above}"


def check_writable(folder: Path) -> None:
    """Raise OSError where a file cannot be created in a folder, or the disk is full."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=WRITE_TEST) as file:
        file.write(bytes(WRITE_TEST_BYTES))
        file.flush()


@contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Give an OSError of the block the name of the file that it writes.

    Without a name it would be that of a full disk: opening a file names it, writing to it does not.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on a GPU or a CPU."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # an error of zoo's own has said what would be smaller
    is_told = isinstance(error, ZooError) or not isinstance(error, RuntimeError)
    return not is_told and any(text in str(error) for text in OUT_OF_MEMORY)


def raise_if_out_of_memory(error: Exception) -> None:
    """Raise an error again if memory ran out: nothing is wrong with the file that is read."""
    if is_out_of_memory(error):
        raise error


@contextmanager
def explain_memory(remedy: str | Message | Callable[[], Message] = "") -> Iterator[None]:
    """Turn want of memory within the block into one line.

    Args:
        remedy: What would be smaller, or a function that returns it.

    Raises:
        ZooError: Memory ran out.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        if callable(remedy):
            remedy = remedy()
        if "DataLoader worker" in cause:
            workers = Message("load data in this process, with ", Setting("data.workers", 0))
            remedy = Message(workers, "; or ", remedy) if remedy else workers
        parts = ("; ", remedy) if remedy else ()
        raise ZooError(f"out of memory: {cause}", *parts) from error


def describe_cause(error: BaseException) -> str:
    """Return the first line of an error of a library, escaped and cut; its type if it is empty."""
    if isinstance(error, OSError) and error.strerror:
        return escape_text(error.strerror)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return escape_text(lines[0])[:MAX_CAUSE]


def describe_damage(error: BaseException) -> str:
    """Return what is wrong with a file that a library could not read."""
    return f"cannot be read: {describe_cause(error)}"


@contextmanager
def guard_reading(
    place: str | os.PathLike[str] = "",
    describe: Callable[[BaseException], str] = describe_damage,
    separator: str = ": ",
) -> Iterator[None]:
    """Turn whatever the block raises while it reads data into one error that names the place.

    Every reader of files uses it: libraries raise errors of any kind for damaged files, and none
    of them documents which.

    Args:
        place: The file, or the row of a table.
        describe: Returns the problem of an error.
        separator: What stands between place and problem.

    Raises:
        DataError: The data cannot be read, or do not fit into memory. An error of zoo passes
            unchanged.
    """
    try:
        yield
    except ZooError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        if is_out_of_memory(error):
            problem = f"out of memory: {describe_cause(error)}"
            remedy = "it is damaged, or too large for this machine"
            raise DataError(f"{problem}; {remedy}", place=place, separator=separator) from error
        raise DataError(describe(error), place=place, separator=separator) from None


@contextmanager
def collect_damage(
    errors: MutableMapping[Key, str], key: Key, place: str | os.PathLike[str] = ""
) -> Iterator[None]:
    """Note what is wrong with one sample of many, where a damaged one ends the block.

    Args:
        errors: Gets the problem, with the place if there is one.
        key: The key of the sample in it.
        place: The file, or the row of a table.

    Raises:
        DataError: Memory ran out, which says nothing about the sample.
    """
    try:
        with guard_reading(place, describe_cause):
            yield
    except DataError as error:
        if error.__cause__ is not None and is_out_of_memory(error.__cause__):
            raise
        errors[key] = str(DataError(error.problem, place=place))


def read_text(path: Path) -> str:
    """Return the text of a file that zoo has written.

    Raises:
        OSError: It cannot be read, or is a folder, a FIFO or a device, which might never end.
        ValueError: It is not UTF-8.
    """
    return read_bytes(path).decode()


def follow_latest(path: Path) -> Path:
    """Return a path with the run directory in place of the file `latest` that names it.

    Args:
        path: Any path, such as `runs/lm_rope/latest` or `runs/lm_rope/latest/best`.

    Returns:
        The path of the run, or below it, which need not exist; other paths unchanged.
    """
    for place in (path, *path.parents):
        if place.name == LATEST and place.is_file() and (name := _read_latest(place)):
            return place.with_name(name) / path.relative_to(place)
    return path


def _read_latest(file: Path) -> str:
    """Return the name of a folder that a file has; empty if it has anything else."""
    try:
        name = read_text(file).removesuffix("\n")
    except (OSError, ValueError):
        return ""
    # a single name leads nowhere but to a neighbour of the file
    is_name = name == Path(name).name and name.isprintable() and name not in ("", "..", LATEST)
    return name if is_name else ""


def read_bytes(path: Path) -> bytes:
    """Return the content of a file that zoo has written. Raises OSError as `read_text` does."""
    # a FIFO without a writer would let a plain open wait for ever
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_regular(handle, path)
        with open(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def _require_regular(handle: int, path: Path) -> None:
    """Raise OSError unless an open file is a regular one."""
    mode = os.fstat(handle).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a FIFO or a device, not a file", str(path))


def read_json(path: Path, problem: str) -> Any:
    """Return the content of a JSON file that zoo has written.

    Args:
        path: The file.
        problem: What a damaged file is, such as "holds no comparison".

    Raises:
        DataError: It cannot be read, is empty or damaged; the message names it.
    """
    try:
        text = read_text(path)
        return json.loads(text)
    except OSError as error:
        detail = error.strerror or str(error)
    except UnicodeDecodeError as error:
        detail = f"it is not UTF-8 at byte {error.start}"
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        detail = f"it is no JSON at {place}" if text.strip() else "it is empty"
    except (ValueError, RecursionError) as error:
        # a number of thousands of digits, or lists in lists in lists
        detail = str(error)[:100]
    raise DataError(f"{problem}, {detail}", place=path)


def read_object(path: Path, problem: str) -> dict[str, Any]:
    """Return the entries of a JSON file. Raises DataError as `read_json` does."""
    found = read_json(path, problem)
    if not isinstance(found, dict):
        raise DataError(f"{problem}, it has no keys", place=path)
    return found


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write plain data as JSON. Raises ZooError as `write_file` does."""
    write_file(io.BytesIO((json.dumps(content, indent=2) + "\n").encode()), path)


def write_file(file: io.BytesIO, path: Path) -> None:
    """Write a file next to `path` and rename it once it is safe on the disk.

    A crash leaves either the old content or the new. A link at `path` is replaced: what it leads to
    keeps its content.

    Raises:
        ZooError: It cannot be written, or is a folder, a FIFO or a device; the previous content of
            `path` is still there.
    """
    unfinished = path.with_name(f".{path.name}{WRITING}")
    try:
        require_replaceable(path)
        with create_file(unfinished) as target:
            target.write(file.getbuffer())
            target.flush()
            os.fsync(target.fileno())
        unfinished.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise ZooError(f"{path}: cannot be written, {error.strerror or error}") from None


def require_replaceable(path: Path) -> None:
    """Raise OSError where a new file would replace a folder, a FIFO or a device."""
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise OSError(errno.EEXIST, "it is a FIFO or a device, not a file", str(path))


def create_file(path: Path) -> IO[bytes]:
    """Create a file of zoo's own, in place of what a killed process or a stranger left there.

    A link of this name is removed, never followed.
    """
    path.unlink(missing_ok=True)
    return path.open("xb")


def open_own(path: Path, mode: int = os.O_RDWR | os.O_CREAT | os.O_APPEND) -> IO[bytes]:
    """Open a file to read and to append to, and create it if it is not there.

    Locks and logs are such files. In a folder of somebody else one may be a link, through which
    zoo would write into a file that has nothing to do with it.

    Args:
        path: The file.
        mode: How to open it instead, as of `os.open`.

    Raises:
        OSError: It is a link, a folder, a FIFO or a device, or cannot be opened.
    """

    def open_unfollowed(name: str, _: int) -> int:
        handle = os.open(name, mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            _require_regular(handle, path)
            if os.fstat(handle).st_nlink > 1:
                problem = "it is a hard link to another file; remove it"
                raise OSError(errno.EMLINK, problem, str(path))
        except OSError:
            os.close(handle)
            raise
        return handle

    try:
        return open(path, "a+b" if mode & os.O_RDWR else "rb", opener=open_unfollowed)
    except OSError as error:
        if not path.is_symlink():
            raise
        problem = f"it is a link to {path.readlink()}, which zoo does not follow; remove it"
        raise OSError(error.errno, problem, str(path)) from None


def _sync_folder(folder: Path) -> None:
    """Flush a folder to the disk; a new name is safe only then."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def log_thread_failures() -> Iterator[None]:
    """Log what threads of libraries cannot write in a line instead of a traceback.

    A logger's thread raises its error again in the main thread, at the next write.
    """
    previous = threading.excepthook

    def report(failure: threading.ExceptHookArgs) -> None:
        if not isinstance(failure.exc_value, OSError):
            previous(failure)
            return
        error = failure.exc_value
        name = failure.thread.name if failure.thread else "a thread"
        log.debug("failed in %s", name, exc_info=error)
        where = f"{error.filename}: " if error.filename else ""
        log.warning("A logger cannot write: %s%s", where, error.strerror or error)

    threading.excepthook = report
    try:
        yield
    finally:
        threading.excepthook = previous


class SignalHandler:
    """Passes signals to a function until the previous handlers are restored.

    Python handles signals only in the main thread; in another thread this does nothing.

    Args:
        on_signal: Called with the signal's number and the current frame.
        signals: The signals to handle.
    """

    def __init__(
        self,
        on_signal: Callable[[int, FrameType | None], None],
        signals: Sequence[Signals] = (SIGINT, SIGTERM),
    ) -> None:
        self.on_signal, self.signals = on_signal, signals
        self._previous: dict[Signals, Any] = {}

    def install(self) -> None:
        """Handle the signals; a second call replaces handlers that others have installed since."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self.signals:
            previous = signal.signal(number, self.on_signal)
            self._previous.setdefault(number, previous)

    def restore(self) -> None:
        """Restore the handlers from before the first `install`."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()


@contextmanager
def stop_on_signal() -> Iterator[list[Signals]]:
    """End the block at SIGINT or SIGTERM, so that its results so far can still be written.

    Signals that were ignored before stay ignored.

    Yields:
        A list, which has the signal once one has come.
    """
    received: list[Signals] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(Signals(number))
        raise KeyboardInterrupt

    heeded = [number for number in (SIGINT, SIGTERM) if signal.getsignal(number) is not SIG_IGN]
    handler = SignalHandler(stop, heeded)
    handler.install()
    try:
        yield received
    except KeyboardInterrupt:
        received[:] = received or [SIGINT]
    finally:
        handler.restore()


def end_after(parent: int) -> None:
    """End this process within about a second after the process that started it.

    Args:
        parent: The process id of the parent, which may have ended already.
    """

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os.kill(os.getpid(), SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def format_now() -> str:
    """Return the time in UTC to the minute, as reports and records show it."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}"


def format_duration(seconds: float) -> str:
    """Return m:ss, or h:mm:ss."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Ticker:
    """One changing line on a terminal, else a line at intervals; an empty string clears it."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, text: str) -> None:
        """Show text."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        elif text and self.is_due():
            log.info("%s", text)

    def is_due(self) -> bool:
        """Return whether a line is due, and start the next interval if so."""
        now = time.monotonic()
        if now - self.last <= INTERVAL:
            return False
        self.last = now
        return True


def escape_strings(value: Any) -> Any:
    """Return plain data or a dataclass with every string in it, keys too, escaped by `escape_text`.

    Args:
        value: Strings in dataclasses, mappings, lists and tuples; whatever else is in it stays.
    """
    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, Mapping):
        return {escape_strings(key): escape_strings(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(escape_strings, value))
    if is_dataclass(value) and not isinstance(value, type):
        own = {one.name: escape_strings(getattr(value, one.name)) for one in fields(value)}
        return replace(value, **own)
    return value


class EscapingFormatter(logging.Formatter):
    """A format of log records in which names of files and classes are shown and not obeyed."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record, of which only line ends and tabs are obeyed."""
        return escape_text(super().format(record), keep="\n\t")
