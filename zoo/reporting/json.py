"""JSON of results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by None."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def as_json(result: Mapping[str, Any]) -> str:
    """Encode a mapping as JSON, with null for NaN and infinity, which JSON does not know."""
    return json.dumps(finite(result), indent=1, allow_nan=False, ensure_ascii=False)
