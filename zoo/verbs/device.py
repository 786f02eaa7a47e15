"""Where a verb runs a model by itself, without a trainer."""

from __future__ import annotations

import torch

from zoo.recipe import Recipe


def device(recipe: Recipe) -> str:
    """The GPU, where there is one and the recipe does not ask for the CPU."""
    return "cuda" if recipe.trainer.accelerator != "cpu" and torch.cuda.is_available() else "cpu"
