"""Handle SIGINT and SIGTERM, so that work can end in good order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from signal import SIG_IGN, SIGINT, SIGTERM, Signals
from types import FrameType
from typing import Any


class SignalHandler:
    """Passes signals to a function until the previous handlers are restored.

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
