"""Where a training runs: what a recipe says of devices, nodes and strategy, as Lightning's options."""

from __future__ import annotations

import warnings
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from zoo.recipe.sections import TrainerOptions
from zoo.run import launching

SILENT: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


def placed(options: TrainerOptions) -> dict[str, Any]:
    """Options of a trainer. What a launcher says of devices and nodes goes before what the recipe says."""
    devices, nodes = launching.surroundings() or (options.devices, options.num_nodes)
    where: dict[str, Any] = {"accelerator": options.accelerator, "devices": devices, "num_nodes": nodes}
    if launching.under_slurm():  # what to do after a signal is up to the script that was submitted
        where["plugins"] = [SLURMEnvironment(auto_requeue=False)]
    return where | {"strategy": _strategy(options.strategy, _count(where))}


def _count(where: dict[str, Any]) -> int:
    """How many processes there will be in all, as Lightning finds it out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return int(L.Trainer(**where, **SILENT).world_size)


def _strategy(name: str, count: int) -> Strategy | str:
    if name == "fsdp":
        return ModelParallelStrategy(count, tensor_parallel_size=1, save_distributed_checkpoint=False)
    return "auto" if count == 1 else DDPStrategy(gradient_as_bucket_view=True)
