"""Recipes: YAML and command-line overrides, composed and validated to typed, frozen data."""

from zoo.config.compose import find_recipe
from zoo.config.overrides import Change, Edit, Overrides, Removal, join_overrides
from zoo.config.recipe import Recipe, check_edits, from_plain, load
from zoo.config.schema import (
    DiagnosticsOptions,
    EvaluateOptions,
    GenerateOptions,
    PredictOptions,
    TrainerOptions,
)
from zoo.config.tree import dump
from zoo.registry import recipe_files

__all__ = [
    "Change",
    "DiagnosticsOptions",
    "Edit",
    "EvaluateOptions",
    "GenerateOptions",
    "Overrides",
    "PredictOptions",
    "Recipe",
    "Removal",
    "TrainerOptions",
    "check_edits",
    "dump",
    "find_recipe",
    "from_plain",
    "join_overrides",
    "load",
    "recipe_files",
]
