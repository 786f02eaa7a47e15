"""Linear maps in at least float32, whatever autocast says: for gates that are summed and biases of distance."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import precise, unrounded


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """layer(x) for an nn.Linear."""
    return held(layer)(x)


def held(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """The map of an nn.Linear with the parameters that it has now, for what is computed again when others may stand there."""
    assert isinstance(layer, nn.Linear)
    weight, bias = precise(layer.weight), None if layer.bias is None else precise(layer.bias)

    def mapped(x: Tensor) -> Tensor:
        with unrounded(x.device):
            return F.linear(precise(x), weight, bias)

    return mapped


def normal(layer: nn.Linear) -> nn.Linear:
    """The same layer with weights N(0, 0.02^2) and biases 0."""
    nn.init.normal_(layer.weight, std=0.02)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def zero(layer: nn.Linear) -> nn.Linear:
    """The same layer, without a bias, with weights 0."""
    nn.init.zeros_(layer.weight)
    return layer
