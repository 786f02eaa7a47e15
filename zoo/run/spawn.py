"""The start of a verb that may run in several processes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from zoo.config import Recipe
from zoo.errors import RecipeError
from zoo.run import distributed
from zoo.run.build import build_trainer
from zoo.run.distributed import Processes

log = logging.getLogger("zoo")


def together(recipe: Recipe, words: Sequence[str]) -> Processes | None:
    """The processes that the recipe or a launcher asks for, this one among them, of which only the first speaks.

    None where `zoo WORDS` was started in several, and all of it is done. Raises AlreadyReported where they failed.
    """
    trainer = build_trainer(recipe, logger=False)
    if distributed.surroundings() is None and trainer.world_size > 1:
        if recipe.trainer.num_nodes > 1:
            told = f"{recipe.trainer.num_nodes} nodes, and nothing here says which of them this is"
            raise RecipeError(
                recipe.make_issue(
                    "trainer.num_nodes", told, "start it with torchrun or SLURM: zoo launch"
                )
            )
        distributed.start(trainer.world_size, words)
        return None
    if recipe.trainer.num_threads is not None:
        torch.set_num_threads(recipe.trainer.num_threads)
    processes = Processes.joined(trainer)
    if processes.count > 1 and processes.first:
        log.info("%d processes work as one", processes.count)
    if not processes.first:
        for handler in logging.getLogger().handlers:
            handler.setLevel(logging.WARNING)
    return processes
