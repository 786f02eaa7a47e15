"""zoo trains, compares and explains transformers by how they know position."""

from __future__ import annotations

from zoo.deferred_imports import install as _defer_imports
from zoo.version import __version__

# type checkers take it for true; importing `typing` would take longer than all the rest
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from zoo.api.commands import diagnose, evaluate, fit, generate, predict
    from zoo.api.comparison import ComparisonFigure, ComparisonResult, compare
    from zoo.api.results import Diagnosis, Run, load
    from zoo.api.tools import bench, convert, export, verify
    from zoo.attention.backends.fused import block_mask
    from zoo.attention.chain import Chain
    from zoo.attention.encoding import Dims, Encoding
    from zoo.attention.functional import (
        Attention,
        attend,
        embed,
        encoding,
        encoding_class,
        encoding_names,
        score_mod,
        scores,
        weights,
    )
    from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
    from zoo.config import Recipe
    from zoo.data.spec import ImageSpec, TextClassificationSpec, TextSpec, VideoSpec
    from zoo.errors import (
        CheckpointError,
        DataError,
        NonFiniteError,
        OptionError,
        RecipeError,
        Stopped,
        ZooError,
    )
    from zoo.integrations.equip import EquipReport, equip, load_equipped, save, unequip
    from zoo.run.build import build_model
    from zoo.run.load import load_recipe

_defer_imports()

_PLACES = {
    "zoo.attention.backends.fused": ("block_mask",),
    "zoo.attention.chain": ("Chain",),
    "zoo.attention.kv_cache": ("KeyValueCache", "SegmentMemory"),
    "zoo.attention.encoding": ("Dims", "Encoding"),
    "zoo.run.build": ("build_model",),
    "zoo.attention.functional": (
        "Attention",
        "attend",
        "embed",
        "encoding",
        "encoding_class",
        "encoding_names",
        "score_mod",
        "scores",
        "weights",
    ),
    "zoo.integrations.equip": ("EquipReport", "equip", "load_equipped", "save", "unequip"),
    "zoo.run.load": ("load_recipe",),
    "zoo.config": ("Recipe",),
    "zoo.api.comparison": ("ComparisonFigure", "ComparisonResult", "compare"),
    "zoo.api.commands": ("diagnose", "evaluate", "fit", "generate", "predict"),
    "zoo.api.results": ("Diagnosis", "Run", "load"),
    "zoo.api.tools": ("bench", "convert", "export", "verify"),
    "zoo.data.spec": ("ImageSpec", "TextClassificationSpec", "TextSpec", "VideoSpec"),
    "zoo.errors": (
        "CheckpointError",
        "DataError",
        "NonFiniteError",
        "OptionError",
        "RecipeError",
        "Stopped",
        "ZooError",
    ),
}
__all__ = [
    "Attention",
    "Chain",
    "CheckpointError",
    "ComparisonFigure",
    "ComparisonResult",
    "DataError",
    "Diagnosis",
    "Dims",
    "Encoding",
    "EquipReport",
    "ImageSpec",
    "KeyValueCache",
    "NonFiniteError",
    "OptionError",
    "Recipe",
    "RecipeError",
    "Run",
    "SegmentMemory",
    "Stopped",
    "TextClassificationSpec",
    "TextSpec",
    "VideoSpec",
    "ZooError",
    "__version__",
    "attend",
    "bench",
    "block_mask",
    "build_model",
    "compare",
    "convert",
    "diagnose",
    "embed",
    "encoding",
    "encoding_class",
    "encoding_names",
    "equip",
    "evaluate",
    "export",
    "fit",
    "generate",
    "load",
    "load_equipped",
    "load_recipe",
    "predict",
    "save",
    "score_mod",
    "scores",
    "unequip",
    "verify",
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
