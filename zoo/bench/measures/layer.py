"""Seconds of one attention layer, forward and backward, with nothing around it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo.bench.clock import Trial, seconds
from zoo.bench.contender import Contender
from zoo.bench.shapes import Setting
from zoo.bench.trial import Facts, Ready
from zoo.functions import Attention


class Layer:
    name, unit, rate, repeated = "layer", "seconds", "", True

    def lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        return asked

    def able(self, contender: Contender) -> bool:
        return contender.layer is not None

    def ready(self, contender: Contender, setting: Setting) -> Ready:
        assert contender.layer is not None
        made = contender.layer(setting).to(setting.device)
        count = sum(parameter.numel() for parameter in made.parameters())
        return Ready(passing(made, setting.shape.batch, setting.device), Facts(parameters=count))


def passing(made: Attention, batch: int, device: str) -> Trial:
    """A run of a layer on random states for the tokens that it was made for."""
    dims = made.layer.dims
    states = torch.randn(batch, dims.tokens, dims.dim, device=device)

    def run() -> float:
        x = states.clone().requires_grad_()
        took = seconds(lambda: _pass(made, x), device)
        made.zero_grad()
        return took

    return run


def _pass(made: nn.Module, x: Tensor) -> None:
    made(x).square().mean().backward()
