"""Suggest what to make smaller in a recipe if memory ran out."""

from __future__ import annotations

from pathlib import Path

from zoo.config import Recipe
from zoo.errors import Message, Setting
from zoo.run.processes import compute_batch_size


def suggest_smaller(recipe: Recipe, run: Path | None = None) -> Message:
    """Return what would take less memory: a smaller batch, else smaller samples or a smaller model.

    Args:
        recipe: The recipe.
        run: The run directory if it is trained. A test keeps nothing for a backward pass.
    """
    options, trainer = recipe.data.options, recipe.trainer
    batch_size = compute_batch_size(recipe)
    parts: list[str | Setting | Message] = []
    if batch_size is not None and batch_size > 1 and "global_batch_size" in options:
        # the least number of parts that divides it
        ways = next(way for way in range(2, batch_size + 1) if batch_size % way == 0)
        steps = ways * trainer.accumulate_grad_batches
        parts += [f"batches of {batch_size // ways} in place of {batch_size}, with "]
        parts += [Setting("trainer.accumulate_grad_batches", steps)]
        parts += [", take less, and a step still has as many samples"]
    elif batch_size is not None and batch_size > 1:
        half = batch_size // 2
        parts += [f"batches of {half} in place of {batch_size}, with "]
        parts += [Setting("data.batch_size", half), ", take about half"]
        if run is not None:
            steps = 2 * trainer.accumulate_grad_batches
            parts += ["; with ", Setting("trainer.accumulate_grad_batches", steps)]
            parts += [" too, a step still has as many samples"]
    else:
        key = next((key for key in ("length", "size") if key in options), None)
        if key is not None:
            parts += ["smaller samples, with ", Setting(f"data.{key}"), ", and "]
        parts += ["a smaller model take less"]
    if run is not None and not trainer.activation_checkpointing:
        parts += ["; so does ", Setting("trainer.activation_checkpointing", True)]
    if run is not None:
        parts += [f"; {run} holds what was saved before"]
    return Message(*parts)
