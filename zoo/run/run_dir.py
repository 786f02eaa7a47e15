"""The run directory: `runs/<recipe>/<UTC time>-<hash>/`, the file `latest` beside it, its lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import itertools
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO

from zoo.config import Recipe
from zoo.errors import ARGUMENT, ConfigIssue, Message, RecipeError, Setting, ZooError
from zoo.utils import LATEST, create_file, follow_latest, open_own
from zoo.version import __version__

log = logging.getLogger("zoo")

PACKAGES = ("torch", "lightning", "torchmetrics", "omegaconf", "numpy")

LOCK = ".lock"
"""What the names of all locks begin with; such files do not occupy a folder."""
RUN_LOCK = f"{LOCK}.fit"
"""The lock of the process that trains in a run directory."""
LOCK_SECONDS = 10.0
"""For the children of a dead process, which inherited its lock, to end too."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def create(
    recipe: Recipe, path: Path | None = None, replace_unsaved: bool = False, processes: int = 1
) -> Path:
    """Create a run directory with `recipe.yaml` and `environment.json`.

    Args:
        recipe: The recipe of the run.
        path: The directory. None: a new one under `runs`, which `latest` then names.
        replace_unsaved: Take the directory of a run that was killed before it saved anything.
            A run with checkpoints is never overwritten.
        processes: The world size, written to `environment.json`.

    Raises:
        RecipeError: The directory holds something already, or cannot be written.
    """
    folder = path or name_new(recipe)
    check_name(folder)
    try:
        if path is None:
            folder = _make_new(folder)
        else:
            check_free(path, replace_unsaved)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        environment = json.dumps(describe_environment(recipe, processes), indent=2) + "\n"
        for name, content in (("recipe.yaml", recipe.yaml()), ("environment.json", environment)):
            with create_file(folder / name) as file:
                file.write(content.encode())
        if path is None:
            # last, so that `latest` never leads to a folder without its recipe
            name_latest(folder)
    except OSError as error:
        raise refuse(folder, error) from None
    return folder


def check_free(folder: Path, replace_unsaved: bool) -> None:
    """Raise RecipeError where a folder that the user chose holds something already."""
    if _is_occupied(folder) and not (replace_unsaved and _has_saved_nothing(folder)):
        message = f"{folder} exists already"
        hint = Message("name a new directory, or add ", Setting("resume", "auto"))
        raise RecipeError(ConfigIssue(ARGUMENT, "run_dir", message, hint))


def check_name(folder: Path) -> None:
    """Raise RecipeError where loggers could not name their files, which takes UTF-8."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        issue = ConfigIssue("run directory", str(folder), "its name is not UTF-8", "rename it")
        raise RecipeError(issue) from None


def make(folder: Path) -> None:
    """Make a folder that the user chose, if it is not there. Raises RecipeError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse(folder, error) from None


def refuse(folder: Path, error: OSError) -> RecipeError:
    """Return the error of a run directory that cannot be written."""
    message = error.strerror or str(error)
    if error.filename is not None and Path(error.filename).parent == folder:
        message = f"{Path(error.filename).name}: {message}"
    hint = Message("choose another with ", Setting("run_dir"))
    return RecipeError(ConfigIssue("run directory", str(folder), message, hint))


def name_new(recipe: Recipe) -> Path:
    """Return the name of a run directory of this second."""
    return Path("runs") / recipe.name / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{recipe.hash}"


def _make_new(folder: Path) -> Path:
    """Make a folder that nobody else has made, adding a number to its name where needed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for count in itertools.count(1):
        numbered = folder if count == 1 else folder.with_name(f"{folder.name}-{count}")
        # mkdir both asks and takes: two processes of the same second get different names
        with contextlib.suppress(FileExistsError):
            numbered.mkdir()
            return numbered
    raise AssertionError


def _is_occupied(folder: Path) -> bool:
    if not folder.is_dir():
        return folder.exists()
    # a lock that waits for its run does not make a folder occupied
    return any(not path.name.startswith(LOCK) for path in folder.iterdir())


def _has_saved_nothing(folder: Path) -> bool:
    checkpoints = folder / "checkpoints"
    return checkpoints.is_dir() and not any(checkpoints.glob("*.ckpt"))


def find_latest(recipe: Recipe) -> Path:
    """Return the newest run directory of a recipe in `runs`; it need not exist."""
    latest = Path("runs") / recipe.name / LATEST
    return latest.parent / latest.readlink() if latest.is_symlink() else follow_latest(latest)


def describe_environment(recipe: Recipe, processes: int = 1) -> dict[str, object]:
    """Return what a run depends on in addition to its recipe."""
    return {
        "zoo": __version__,
        "packages": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": sys.argv,
        "git": _describe_git(),
        "seed": recipe.seed,
        "devices": _describe_devices(),
        "processes": processes,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _describe_devices() -> dict[str, object]:
    import torch

    from zoo.run.machine import read_processor

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"processor": read_processor(), "threads": torch.get_num_threads(), "cuda": names}


def _describe_git() -> dict[str, object] | None:
    """Return the commit of zoo's own code; None where it is no part of a repository."""
    home = Path(__file__).parent.parent

    def run_git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=home, capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        # a repository around an installed package tracks other files
        run_git("ls-files", "--error-unmatch", "__init__.py")
        changes = run_git("status", "--porcelain", "--", ".")
        return {"commit": run_git("rev-parse", "HEAD"), "changed": bool(changes)}
    except (OSError, subprocess.SubprocessError):
        return None


def name_latest(folder: Path) -> None:
    """Write the name of a run directory into the file `latest` next to it, atomically.

    A link of version 0.3 is replaced.
    """
    # the name of the process, since two may begin at once
    temporary = folder.with_name(f".{LATEST}-{os.getpid()}")
    with create_file(temporary) as file:
        # a name without its folder, so that `runs` can be moved
        file.write(f"{folder.name}\n".encode())
    temporary.replace(folder.with_name(LATEST))


@dataclass(frozen=True)
class Holder:
    """The process that has locked a folder, as its lock file names it."""

    pid: int
    host: str
    since: str

    @classmethod
    def read(cls, file: IO[str]) -> Holder | None:
        """Read the holder from a lock file; None if the file names none."""
        file.seek(0)
        try:
            return cls(**json.loads(file.read()))
        except (OSError, ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"

    def has_died(self) -> bool:
        """Return whether the process is known to have ended; False for other hosts."""
        if self.host != platform.node():
            return False
        try:
            # signal 0 asks whether the process exists
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            # of another user
            return False
        return False


class LockedError(ZooError):
    """Another process has the lock of a folder."""


@contextlib.contextmanager
def lock(folder: Path, message: str, patience: float = 0.0, name: str = LOCK) -> Iterator[None]:
    """Lock a folder for this process, which the lock file then names.

    The system gives the lock up when the process ends, however it ends, and NFS passes it on to
    other hosts. Where a file system has no locks, the name in the file is what is known: a process
    of this host that has died is followed, one of another host is taken to be alive.

    Args:
        folder: The folder, which exists.
        message: What is wrong if another process has it.
        patience: Seconds to wait for the other process.
        name: The name of the lock file; a folder may have several locks.

    Raises:
        LockedError: Another process still has the folder; says which.
        OSError: The lock file cannot be created, or is a link or no file at all.
    """
    path = folder / name
    with _open_locked(path, message, patience) as file:
        holder = Holder(os.getpid(), platform.node(), f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S UTC}")
        # a full disk keeps nobody from working with what is there
        with contextlib.suppress(OSError):
            file.truncate(0)
            file.write(json.dumps(asdict(holder)) + "\n")
            file.flush()
        try:
            yield
        finally:
            # nobody else has it by now; who opened it meanwhile notices that it is gone
            path.unlink(missing_ok=True)


def is_locked(folder: Path, name: str = LOCK) -> bool:
    """Return whether another process has locked a folder."""
    path = folder / name
    try:
        with _open_lock(path, os.O_RDWR) as file:
            return not _try_lock(file)
    except FileNotFoundError:
        return False
    except OSError as error:
        # a folder that may only be read
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        with _open_lock(path, os.O_RDONLY) as file:
            return not _try_lock(file)


def _open_lock(path: Path, mode: int) -> IO[str]:
    return io.TextIOWrapper(open_own(path, mode), encoding="utf-8")


def _open_locked(path: Path, message: str, patience: float) -> IO[str]:
    """Open a lock file and lock it. Raises LockedError as `lock` does."""
    start = time.monotonic()
    while True:
        # the name of its holder is left to read
        file = _open_lock(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        if _try_lock(file):
            # its last holder may have removed the file between open and lock: a lock on it protects
            # nothing
            if _is_at(file, path):
                return file
            file.close()
            continue
        holder = Holder.read(file)
        file.close()
        # children that inherited the lock outlive their parent by a moment
        is_dead = holder is not None and holder.has_died()
        if time.monotonic() - start >= (max(patience, LOCK_SECONDS) if is_dead else patience):
            detail = "" if holder is None else f": {holder}"
            raise LockedError(f"{path.parent}: {message}{detail}")
        time.sleep(0.1)


def _is_at(file: IO[str], path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _try_lock(file: IO[str]) -> bool:
    try:
        # unlike POSIX locks, those of flock belong to the open file: another thread cannot drop
        # them
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.debug("%s: the file system has no locks; the process it names decides", file.name)
        holder = Holder.read(file)
        return holder is None or holder.has_died()
    return True
