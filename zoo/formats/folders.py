"""New folders, which get their name once they are complete."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from zoo.errors import ARGUMENT, ConfigIssue, RecipeError, Stopped, ZooError
from zoo.run import run_dir
from zoo.utils import WRITING, escape_text, stop_on_signal

log = logging.getLogger("zoo")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to write in, which gets its name once the block has ended well.

    Nothing is left behind if the block fails or a signal ends it. What a killed process left
    behind is removed by the next process that writes a folder of this name.

    Args:
        folder: The name; there must be nothing, or an empty folder.

    Raises:
        RecipeError: The folder holds something, or cannot be created.
        LockedError: Another process is writing it.
        ZooError: The disk is full, or the folder got its name from another process.
        Stopped: A signal ended the block.
    """
    shown = escape_text(str(folder))
    created = [parent for parent in folder.parents if not parent.exists()]
    # next to the folder, so that one rename on the same disk gives it its name
    outer = folder.with_name(f".{folder.name}{WRITING}") if folder.name else folder
    unfinished, is_written = outer / folder.name, False
    with ExitStack() as stack:
        _require_free(folder)
        stack.callback(_remove_empty, created)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            name = f"{run_dir.LOCK}.{folder.name}"
            message = f"another process is writing {shown}"
            stack.enter_context(run_dir.lock(folder.parent, message, name=name))
            # again: another process may have written it before this one had the lock
            _require_free(folder)
            _remove_remnants(outer)
            unfinished.mkdir(parents=True)
        except OSError as error:
            reason, hint = error.strerror or str(error), "name another folder"
            raise RecipeError(ConfigIssue(ARGUMENT, shown, reason, hint)) from None
        try:
            with stop_on_signal() as received:
                yield unfinished
                unfinished.rename(folder)
        except OSError as error:
            reason = f"cannot be written, {error.strerror or error}; nothing was kept"
            raise ZooError(f"{shown}: {reason}") from None
        finally:
            # a signal may come after the folder got its name
            is_written = not unfinished.exists()
            shutil.rmtree(outer, ignore_errors=True)
    if received:
        outcome = "it was written" if is_written else "nothing was written"
        raise Stopped(received[0], f"stopped by {received[0].name}; {outcome}")


def _require_free(folder: Path) -> None:
    """Raise RecipeError if there is something other than an empty folder."""
    is_folder = folder.is_dir() and not folder.is_symlink() and folder.name not in ("", "..")
    if os.path.lexists(folder) and not (is_folder and not any(folder.iterdir())):
        name = escape_text(str(folder))
        raise RecipeError(ConfigIssue(ARGUMENT, name, "exists already", "name a new folder"))


def _remove_remnants(outer: Path) -> None:
    """Remove what a killed process has left, and say so."""
    if outer.exists():
        shutil.rmtree(outer)
        log.info("removed %s, unfinished: the process that wrote it was killed", outer)


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders up to the first that holds something, each before the one that it is in."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()
