"""AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) with linear warmup and cosine decay."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch import nn

from zoo.optim.param_groups import (
    ParamGroup,
    build_param_groups,
    find_encoding_parameters,
    find_group,
)
from zoo.registry import Between, register

Share = Annotated[float, Between(0, 0.9999)]


@register
class AdamW:
    """AdamW that decays the weights of linear and convolutional layers, and nothing else.

    Norms, biases, special tokens, tables, frequencies and generators are not decayed.

    Args:
        lr: Learning rate after warmup.
        weight_decay: Weight decay.
        beta1: Decay of the mean of gradients.
        beta2: Decay of the mean of squared gradients.
        warmup_ratio: Share of all steps over which the learning rate rises linearly.
        min_lr_ratio: Learning rate at the end, as a share of `lr`.
        encoding_lr: Factor on the learning rate of all parameters that belong to encodings. It has
            no effect on an encoding without parameters, nor where one of `param_groups` matches.
        param_groups: Learning rate, weight decay or freezing of parameters by name; the first that
            matches a name applies.
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
        encoding_lr: Annotated[float, Between(1e-12, 1e12)] = 1.0,
        param_groups: tuple[ParamGroup, ...] = (),
    ) -> None:
        self.lr, self.weight_decay, self.betas = lr, weight_decay, (beta1, beta2)
        self.warmup_ratio, self.min_lr_ratio = warmup_ratio, min_lr_ratio
        self.encoding_lr, self.param_groups = encoding_lr, param_groups

    def configure(self, model: nn.Module, steps: int) -> dict[str, Any]:
        """Create optimizer and schedule in Lightning's form, for so many training steps.

        Raises:
            OptionError: A parameter group matches nothing, or all parameters are frozen.
        """
        matrices = {
            id(module.weight)
            for module in model.modules()
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
        }
        scaled = find_encoding_parameters(model) if self.encoding_lr != 1 else frozenset()
        decays: dict[str, float] = {}
        by_settings: dict[tuple[bool, bool], list[nn.Parameter]] = {
            (False, True): [],
            (False, False): [],
        }
        for name, parameter in model.named_parameters():
            is_matrix = id(parameter) in matrices
            decays[name] = self.weight_decay * is_matrix
            if find_group(name, self.param_groups) is None:
                key = name in scaled, is_matrix
                by_settings.setdefault(key, []).append(parameter)

        groups: list[dict[str, Any]] = []
        for (is_scaled, is_decayed), parameters in by_settings.items():
            group: dict[str, Any] = {"params": parameters}
            group["weight_decay"] = self.weight_decay if is_decayed else 0.0
            if is_scaled:
                group["lr"] = self.lr * self.encoding_lr
            groups.append(group)
        if self.param_groups:
            groups += build_param_groups(model, self.param_groups, self.lr, decays)
        optimizer = torch.optim.AdamW(groups, lr=self.lr, betas=self.betas)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.lr_factor(step, steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def lr_factor(self, step: int, steps: int) -> float:
        """Compute the learning rate of a step as a share of `lr`."""
        warmup = round(self.warmup_ratio * steps)
        if step < warmup:
            return (step + 1) / warmup
        progress = min((step - warmup) / max(steps - warmup, 1), 1.0)
        cosine = (1 + math.cos(math.pi * progress)) / 2
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * cosine
