"""SHA-256 of the files of a comparison. They find a slip; whoever forges a file renews its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

HASH = "sha256"
EDITED = "its content does not fit its SHA-256: it was changed by hand or damaged"


def hash_plain(plain: Any) -> str:
    """Return the SHA-256 of plain data as canonical JSON: sorted keys, no spaces, UTF-8."""
    return hashlib.sha256(format_json(plain, is_sorted=True).encode()).hexdigest()


def format_json(value: Any, *, is_sorted: bool = False) -> str:
    """Return plain data as JSON without spaces. Raises ValueError for NaN and infinity."""
    return json.dumps(
        value, sort_keys=is_sorted, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def seal(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file with its SHA-256 at the end."""
    return {**entries, HASH: hash_plain(entries)}


def is_unchanged(content: Mapping[str, Any]) -> bool:
    """Return whether the content of a file fits the SHA-256 that it states."""
    try:
        entries = {key: value for key, value in content.items() if key != HASH}
        return bool(content[HASH] == hash_plain(entries))
    except ValueError:
        # a number that is none, which zoo never writes
        return False
