"""What is being done, while it is: one line that changes on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import logging
import sys
import time

log = logging.getLogger("zoo")
QUIET = 10.0  # seconds between lines where there is no terminal


class Ticker:
    """Called with what begins; with nothing at the end, which clears the line."""

    def __init__(self) -> None:
        self.spoken = time.monotonic()

    def __call__(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        elif text and time.monotonic() - self.spoken > QUIET:
            self.spoken = time.monotonic()
            log.info("%s", text)
