"""Show progress: one changing line on a terminal, else a line now and then."""

from __future__ import annotations

import logging
import sys
import time

log = logging.getLogger("zoo")

INTERVAL = 10.0  # seconds between lines where there is no terminal


class Ticker:
    """Shows what is being done; an empty text clears the line."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, text: str) -> None:
        """Show a text."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        elif text and self.is_due():
            log.info("%s", text)

    def is_due(self) -> bool:
        """Tell whether a line is due, and start the next interval if so."""
        now = time.monotonic()
        if now - self.last <= INTERVAL:
            return False
        self.last = now
        return True
