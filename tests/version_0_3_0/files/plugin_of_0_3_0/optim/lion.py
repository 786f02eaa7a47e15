"""Lion: the sign of an interpolated momentum (Chen et al. 2023, arXiv:2302.06675)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from zoo.optim.base import Share, TorchOptimizer
from zoo.registry import register


class SignMomentum(Optimizer):
    """The algorithm, as an optimizer of torch."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                update = torch.lerp(weight.grad, state["momentum"], beta1).sign()
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"])
                state["momentum"].lerp_(weight.grad, 1 - beta2)
        return loss


@register
@dataclass(kw_only=True)
class Lion(TorchOptimizer):
    """Learning rate, schedule, weight decay and parameter groups come from TorchOptimizer."""

    algorithm = SignMomentum

    beta1: Share = 0.9
    """Weight of the momentum in an update."""
    beta2: Share = 0.99
    """Decay of the momentum."""
