"""An exponential moving average of the weights, which is evaluated and kept."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import get_ema_multi_avg_fn

from zoo.run.checkpoint import LIVE


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
        # the module itself is not there yet
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self._average_model is not None:
            # Lightning converts only the module under training, so "bf16-true" would mix types
            trainer.precision_plugin.convert_module(self._average_model.module)

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
        if self._is_swapped:
            # a signal has interrupted validation
            checkpoint["state_dict"], checkpoint[LIVE] = checkpoint[LIVE], checkpoint["state_dict"]

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore both kinds of weights to go on training; a test needs only the average."""
        if trainer.state.fn != "fit":
            return
        if LIVE in checkpoint:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
        elif self._average_model is not None:
            # trained without an average so far
            self._average_model.module.load_state_dict(checkpoint["state_dict"])
