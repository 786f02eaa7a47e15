"""Small trained models that come with zoo, named zoo:NAME wherever a run may be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from zoo.errors import CheckpointError
from zoo.suggestions import nearest

PREFIX = "zoo:"
FOLDER = Path(__file__).parents[1] / "trained"
"""`python examples/release.py zoo/trained vit_comrope lm_rope lm_fox` makes it."""
NUMBERS = FOLDER / "release.json"


def list_weights() -> dict[str, dict[str, Any]]:
    """Return {name: encodings, bytes, measure, value, minutes} of all models."""
    models: dict[str, dict[str, Any]] = json.loads(NUMBERS.read_text(encoding="utf-8"))
    return models


def summarize_weights() -> dict[str, str]:
    """Return {name: its encodings and what it scored}."""
    return {
        name: f"{own['encodings']}, {own['measure']} {own['value']:.4f}"
        for name, own in list_weights().items()
    }


def find_folder(address: str | os.PathLike[str]) -> Path:
    """Return the folder of a model.

    Args:
        address: zoo:NAME.

    Raises:
        CheckpointError: There is no such model.
    """
    name = os.fspath(address).removeprefix(PREFIX)
    known = list_weights()
    if name not in known:
        hint = nearest(f"{PREFIX}{name}", [f"{PREFIX}{other}" for other in known])
        raise CheckpointError(f"{PREFIX}{name}: zoo has no weights of this name; {hint}")
    return FOLDER / name
