"""Signals that end a block of work early, so that what it has found so far can still be written."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIG_IGN, SIGINT, SIGTERM, Signals


@contextmanager
def stopping() -> Iterator[list[Signals]]:
    """SIGINT and SIGTERM end the block, and then stand in the list; what was ignored before stays ignored."""
    received: list[Signals] = []

    def stop(number: int, frame: object) -> None:
        received.append(Signals(number))
        raise KeyboardInterrupt

    caught = [one for one in (SIGINT, SIGTERM) if signal.getsignal(one) is not SIG_IGN]
    before = {one: signal.signal(one, stop) for one in caught}
    try:
        yield received
    except KeyboardInterrupt:
        received[:] = received or [SIGINT]
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
