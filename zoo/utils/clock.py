"""Times as users read them, and a progress line on the terminal."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime

log = logging.getLogger("zoo")

INTERVAL = 10.0
"""Seconds between progress lines where there is no terminal."""


def format_now() -> str:
    """Return the time in UTC to the minute, as reports and records show it."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}"


def format_duration(seconds: float) -> str:
    """Return m:ss, or h:mm:ss."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Ticker:
    """One changing line on a terminal, else a line at intervals; an empty text clears it."""

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
