"""An exponential moving average of the weights, which is what is evaluated and kept."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import get_ema_multi_avg_fn

LIVE = "current_model_state"  # where Lightning puts the weights under training; those of `state_dict` are the average


class Average(WeightAveraging):
    """average = decay * average + (1 - decay) * weights after each step, beginning with the weights after the first.

    Validation, and so `best`, sees the average. A checkpoint has it as its weights, and beside it the weights that go on
    being trained. Stands first among callbacks, so that all others see a step as a whole.
    """

    def __init__(self, decay: float) -> None:
        # constants and frozen weights stay as they are to the last bit: buffers are copied, and equals interpolated
        super().__init__(use_buffers=False, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self._swapped = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._device = trainer.strategy.root_device  # where the module itself is not yet
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self._average_model is not None:
            trainer.precision_plugin.convert_module(self._average_model.module)

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_validation_epoch_start(trainer, pl_module)
        self._swapped = True

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_validation_epoch_end(trainer, pl_module)
        self._swapped = False

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if self._swapped:  # as where a signal breaks a validation off
            checkpoint["state_dict"], checkpoint[LIVE] = checkpoint[LIVE], checkpoint["state_dict"]

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.state.fn != "fit":  # the average, which is tested, is loaded already
            return
        if LIVE in checkpoint:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
        elif self._average_model is not None:  # trained without an average so far
            self._average_model.module.load_state_dict(checkpoint["state_dict"])
