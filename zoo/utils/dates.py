"""Format dates and durations."""

from __future__ import annotations

from datetime import UTC, datetime


def format_now() -> str:
    """Return the time in UTC to the minute, as reports and records show it."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}"


def format_duration(seconds: float) -> str:
    """Return m:ss, or h:mm:ss."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
