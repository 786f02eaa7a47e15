"""zoo trains, compares and explains transformers by how they know position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.api import (
        Attention,
        attend,
        embed,
        encoding,
        encoding_class,
        encoding_names,
        scores,
        weights,
    )
    from zoo.attention.chain import Chain
    from zoo.attention.encoding import Dims, Encoding
    from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
    from zoo.config import Recipe
    from zoo.integrations.equip import EquipReport, equip, unequip
    from zoo.run.build import build_model
    from zoo.run.load import load, load_recipe

__version__ = "0.2.0"

_PLACES = {
    "zoo.attention.chain": ("Chain",),
    "zoo.attention.kv_cache": ("KeyValueCache", "SegmentMemory"),
    "zoo.attention.encoding": ("Dims", "Encoding"),
    "zoo.run.build": ("build_model",),
    "zoo.api": (
        "Attention",
        "attend",
        "embed",
        "encoding",
        "encoding_class",
        "encoding_names",
        "scores",
        "weights",
    ),
    "zoo.integrations.equip": ("EquipReport", "equip", "unequip"),
    "zoo.run.load": ("load", "load_recipe"),
    "zoo.config": ("Recipe",),
}
__all__ = [
    "Attention",
    "Chain",
    "Dims",
    "Encoding",
    "EquipReport",
    "KeyValueCache",
    "Recipe",
    "SegmentMemory",
    "attend",
    "build_model",
    "embed",
    "encoding",
    "encoding_class",
    "encoding_names",
    "equip",
    "load",
    "load_recipe",
    "scores",
    "unequip",
    "weights",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `zoo --help` need not wait for torch."""
    import importlib

    from zoo.packages import explain_imports

    for module, names in _PLACES.items():
        if name in names:
            with explain_imports():
                return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
