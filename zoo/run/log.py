"""What a run tells, kept in its directory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("zoo")


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """All that is told meanwhile goes to a file too, and what only a developer asks for."""
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A full disk is told by the run itself."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()
