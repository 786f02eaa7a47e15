"""AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) with linear warm-up and cosine decay."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch import nn

from zoo.optim.param_groups import ParamGroup, build_param_groups, find_group
from zoo.registry import Between, register

Share = Annotated[float, Between(0, 0.9999)]


@register
class AdamW:
    """Decays the weight matrices of linear and convolutional layers, and nothing else: no norms, biases, tokens, tables,
    frequencies or generators.

    `warmup` and the decay after it are shares of all steps; the rate ends at `lr * floor`. `rules` change the rate and the
    decay of parameters by name, or freeze them; the first that matches a name counts.
    """

    def __init__(
        self,
        *,
        lr: Annotated[float, Between(1e-12, 1e12)],
        weight_decay: Annotated[float, Between(0)] = 0.05,
        beta1: Share = 0.9,
        beta2: Share = 0.999,
        warmup_ratio: Share = 0.05,
        min_lr_ratio: Annotated[float, Between(0, 1)] = 0.01,
        param_groups: tuple[ParamGroup, ...] = (),
    ) -> None:
        self.lr, self.weight_decay, self.betas = lr, weight_decay, (beta1, beta2)
        self.warmup, self.floor, self.rules = warmup_ratio, min_lr_ratio, param_groups

    def configure(self, model: nn.Module, steps: int) -> dict[str, Any]:
        """Optimiser and schedule in Lightning's form, for a training of so many steps."""
        matrices = {
            id(module.weight)
            for module in model.modules()
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
        }
        decays = {
            name: self.weight_decay * (id(p) in matrices) for name, p in model.named_parameters()
        }
        free = [p for name, p in model.named_parameters() if find_group(name, self.rules) is None]
        decayed = [p for p in free if id(p) in matrices]
        others = [p for p in free if id(p) not in matrices]
        usual = [
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        ruled = build_param_groups(model, self.rules, self.lr, decays) if self.rules else []
        optimiser = torch.optim.AdamW([*usual, *ruled], lr=self.lr, betas=self.betas)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: self.lr_factor(step, steps)
        )
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def lr_factor(self, step: int, steps: int) -> float:
        """Share of `lr` at a step: rising linearly to 1, then falling along a cosine to `floor`."""
        rise = round(self.warmup * steps)
        if step < rise:
            return (step + 1) / rise
        fall = min((step - rise) / max(steps - rise, 1), 1.0)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * fall)) / 2
