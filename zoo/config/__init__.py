"""YAML recipes and command-line overrides, checked against signatures, as typed and frozen data."""

from zoo.config.folders import find_recipe, recipe_files
from zoo.config.recipe import Recipe, dumped, from_plain, load
from zoo.config.sections import (
    DiagnosticsOptions,
    EvaluateOptions,
    GenerateOptions,
    PredictOptions,
    TrainerOptions,
)

__all__ = [
    "DiagnosticsOptions",
    "EvaluateOptions",
    "GenerateOptions",
    "PredictOptions",
    "Recipe",
    "TrainerOptions",
    "dumped",
    "find_recipe",
    "from_plain",
    "load",
    "recipe_files",
]
