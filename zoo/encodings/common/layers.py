"""Linear maps in at least float32, whatever autocast says: for gates that are summed and biases of distance."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import disable_autocast, upcast


def convolve(x: Tensor, weights: Tensor, document: Tensor | None) -> Tensor:
    """sum_s weights_s x_{t-s} over the tokens [1|B, N, D] of t's own document; weights [S, D], the token itself first.

    In at least float32. `document` int [1|B, M] ends where x ends; None where all tokens are of one.
    """
    x, n = upcast(x), x.shape[1]
    out = upcast(weights[0]) * x
    for step in range(1, len(weights)):
        before = upcast(weights[step]) * _later(x, step)
        if document is not None:
            own = document[:, -n:]
            before = before * (_later(own, step) == own)[..., None]
        out = out + before
    return out


def _later(tokens: Tensor, step: int) -> Tensor:
    """Each token [1|B, N, ..] where the one `step` tokens after it stands; zeros at the beginning."""
    beyond = (0, 0) * (tokens.dim() - 2)
    return F.pad(tokens, (*beyond, step, 0))[:, : tokens.shape[1]]


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """layer(x) for an nn.Linear."""
    return freeze_linear(layer)(x)


def freeze_linear(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """The map of an nn.Linear with the parameters that it has now, for what is computed again when others may stand there."""
    assert isinstance(layer, nn.Linear)
    weight, bias = upcast(layer.weight), None if layer.bias is None else upcast(layer.bias)

    def mapped(x: Tensor) -> Tensor:
        with disable_autocast(x.device):
            return F.linear(upcast(x), weight, bias)

    return mapped


def init_normal(layer: nn.Linear) -> nn.Linear:
    """The same layer with weights N(0, 0.02^2) and biases 0."""
    nn.init.normal_(layer.weight, std=0.02)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def init_zero(layer: nn.Linear) -> nn.Linear:
    """The same layer, without a bias, with weights 0."""
    nn.init.zeros_(layer.weight)
    return layer
