"""An exponential moving average of the weights, which is evaluated and kept."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from zoo.run.checkpoint import LIVE
from zoo.tasks.sharding import reshard


class ExponentialMovingAverage(WeightAveraging):
    """Average the weights: average = decay * average + (1 - decay) * weights, after each step.

    The average begins with the weights after the first step. Validation, and so `best`, sees the
    average. A checkpoint has it as its weights, and the weights under training separately. This is
    the first of the callbacks, so that all others see a step as a whole.

    Args:
        decay: Between 0 and 1; nearer to 1 averages over more steps.
    """

    def __init__(self, decay: float) -> None:
        # constants and frozen weights stay equal to the last bit: buffers are copied, and equal
        # values interpolated
        super().__init__(use_buffers=False, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self._is_swapped = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Create the average on the device of training."""
        if pl_module.device_mesh is not None:
            if stage == "fit":
                # copied before it is sharded, which no sharded module can be
                average = AveragedModel(pl_module, use_buffers=False, **self._kwargs)
                average.module.configure_model()  # type: ignore[operator]
                self._average_model = average
            return
        # the module itself is not there yet
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self._average_model is not None:
            # Lightning converts only the module under training, so "bf16-true" would mix types
            trainer.precision_plugin.convert_module(self._average_model.module)

    def _swap_models(self, pl_module: L.LightningModule) -> None:
        """Swap the weights under training and their average."""
        reshard(pl_module)
        super()._swap_models(pl_module)

    def _copy_average_to_current(self, pl_module: L.LightningModule) -> None:
        """Copy the average to the module under training."""
        reshard(pl_module)
        super()._copy_average_to_current(pl_module)

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Swap the average in."""
        super().on_validation_epoch_start(trainer, pl_module)
        self._is_swapped = True

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Swap the average out."""
        super().on_validation_epoch_end(trainer, pl_module)
        self._is_swapped = False

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the average as the weights, and the weights under training in addition."""
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if pl_module.device_mesh is not None and self._average_model is not None:
            # as the strategy saves the weights under training
            is_whole = not getattr(trainer.strategy, "writes_shards", False)
            options = StateDictOptions(full_state_dict=is_whole, cpu_offload=True)
            average = self._average_model.module
            checkpoint["state_dict"] = get_model_state_dict(average, options=options)
        if self._is_swapped:
            # a signal has interrupted validation
            checkpoint["state_dict"], checkpoint[LIVE] = checkpoint[LIVE], checkpoint["state_dict"]

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore both kinds of weights to go on training; a test needs only the average."""
        if trainer.state.fn != "fit":
            return
        if pl_module.device_mesh is not None:
            self._load_shards(pl_module, checkpoint)
        elif LIVE in checkpoint:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
        elif self._average_model is not None:
            # trained without an average so far
            self._average_model.module.load_state_dict(checkpoint["state_dict"])

    def _load_shards(self, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore both kinds of sharded weights. The strategy has loaded those of the average."""
        assert self._average_model is not None
        average = self._average_model
        with torch.no_grad():
            for copied, loaded in zip(
                average.module.parameters(), pl_module.parameters(), strict=True
            ):
                copied.copy_(loaded)
        if LIVE in checkpoint:
            average.n_averaged.copy_(checkpoint["averaging_state"]["n_averaged"])
            is_whole = not any(isinstance(one, DTensor) for one in checkpoint[LIVE].values())
            options = StateDictOptions(full_state_dict=is_whole, broadcast_from_rank0=is_whole)
            set_model_state_dict(pl_module, checkpoint[LIVE], options=options)
