"""Dates."""

from __future__ import annotations

from datetime import UTC, datetime


def format_now() -> str:
    """Return the time in UTC to the minute, as reports and records show it."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}"
