"""Run a model in evaluation mode, and with weights that hide nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and restore the mode of each module."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def stir(model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    """Move the vectors among a model's weights off their values.

    Fresh weights of norms are 1 and biases are 0, which hides where they act.

    Returns:
        The vectors with their former values.
    """
    draw = torch.Generator("cpu").manual_seed(0)
    original = []
    for parameter in model.parameters():
        if parameter.dim() <= 1 and parameter.is_floating_point() and not parameter.is_meta:
            noise = torch.rand(2, *parameter.shape, generator=draw, device="cpu") - 0.5
            factor, shift = noise.to(parameter)
            original.append((parameter, parameter.data))
            parameter.data = parameter.data * (1 + 0.6 * factor) + 0.2 * shift
    return original


@contextmanager
def stirred(model: nn.Module) -> Iterator[None]:
    """Move the vectors among a model's weights off their values for a while."""
    original = stir(model)
    try:
        yield
    finally:
        for parameter, values in original:
            parameter.data = values
