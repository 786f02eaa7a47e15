"""Whether JSON has the shape that its reader expects: files of a folder may be older, damaged, or somebody else's."""

from __future__ import annotations

from typing import Any

ANY = "*"  # each key of a mapping
NUMBER = (int, float)
NOTHING = type(None)
PLACES = {ANY: {"positions": [(*NUMBER, NOTHING)]}}
ENVIRONMENT = {
    "zoo": str,
    "packages": {ANY: str},
    "git": ({"commit": str, "changed": bool}, NOTHING),
    "processes": int,
    "devices": {"cuda": [str], "threads": int},
}
START = {
    "parameters": int,
    "weights": {ANY: [(int, str)]},
    "backends": [str],
    "monitor": str,
    "order": (str, NOTHING),
    "batch": str,
    "device": str,
}
END = {
    "metrics": {},
    "steps": int,
    "minutes": NUMBER,
    "step_seconds": (*NUMBER, NOTHING),
    "memory": NUMBER,
    "device": str,
    "environment": ENVIRONMENT,
}
MEASURED = {
    **dict.fromkeys(("resolutions", "lengths", "variants"), PLACES),
    "rules": {ANY: PLACES},
    **PLACES[ANY],
}
PLAN = {
    **dict.fromkeys(
        ("zoo", "made", "command", "recipe", "measure", "better", "trained", "windows"), str
    ),
    "base": {},
    "machine": {},
    "variants": {ANY: {ANY: str}},
    "seeds": [int],
    "chosen": bool,
    "axes": [{"key": str, "title": str, "values": [str]}],
    "cells": [{"name": str, "variant": str, "seed": int, "recipe": {}}],
}


def fits(found: Any, shape: Any) -> bool:
    """A shape is a type, a list of one, alternatives, or {key: shape}, of which none need be there."""
    if isinstance(shape, tuple):
        return any(fits(found, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(found, list) and all(fits(one, shape[0]) for one in found)
    if isinstance(shape, dict):
        pairs = (
            [(one, shape.get(key, shape.get(ANY))) for key, one in found.items()]
            if isinstance(found, dict)
            else []
        )
        return isinstance(found, dict) and all(
            each is None or fits(one, each) for one, each in pairs
        )
    return isinstance(found, shape)
