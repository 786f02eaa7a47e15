"""Logs the norm of all weights after each epoch, as train/weight_norm."""

from __future__ import annotations

import lightning as L
import torch

from zoo.registry import register


@register
class WeightNorm(L.Callback):
    """Any callback of Lightning, made with the keyword-only arguments that a recipe gives.

    What `state_dict` returns is saved and restored with the run.

    Args:
        match: Only weights whose name has this text; empty for all.
    """

    def __init__(self, *, match: str = "") -> None:
        self.match = match

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        named = pl_module.named_parameters()
        weights = [weight.detach() for name, weight in named if self.match in name]
        pl_module.log("train/weight_norm", torch.nn.utils.get_total_norm(weights))
