"""What `--json` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zoo.plain import finite


def as_json(result: Mapping[str, Any]) -> str:
    """One object, with null for what is no number: JSON knows neither NaN nor infinity."""
    return json.dumps(finite(result), indent=1, allow_nan=False, ensure_ascii=False)
