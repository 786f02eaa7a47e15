"""Linear layers and convolutions in at least float32, also under autocast.

bfloat16 is too coarse for gates that are summed along a sequence and for biases of distance.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import disable_autocast, upcast
from zoo.attention.tokens import order_padding_first, take_tokens


def convolve(x: Tensor, kernel: Tensor, document: Tensor | None) -> Tensor:
    """Compute a causal convolution per channel within documents: sum_s kernel_s x_{t-s}.

    Args:
        x: Token states [1|B, N, D].
        kernel: Weights [S, D]; the first row belongs to the token itself.
        document: Document numbers int [1|B, M], whose last N belong to x, -1 for padding, which
            the convolution passes over; None: one document.

    Returns:
        The convolved states [1|B, N, D] in at least float32.
    """
    x = upcast(x)
    if document is None:
        return _convolve(x, kernel, None)
    # Without the padding between them, the tokens of a document are neighbours.
    document = document[:, -x.shape[1] :]
    order = order_padding_first(document)
    out = _convolve(take_tokens(x, order), kernel, document.gather(1, order))
    return take_tokens(out, order.argsort(1))


def _convolve(x: Tensor, kernel: Tensor, document: Tensor | None) -> Tensor:
    """Compute the convolution of `convolve` over neighbours."""
    out = upcast(kernel[0]) * x
    for step in range(1, len(kernel)):
        earlier = upcast(kernel[step]) * _shift(x, step)
        # A token of another document contributes nothing.
        if document is not None:
            earlier = earlier * (_shift(document, step) == document)[..., None]
        out = out + earlier
    return out


def _shift(tokens: Tensor, step: int) -> Tensor:
    """Delay tokens [1|B, N, ..] by `step`; the first `step` become zeros."""
    other_axes = (0, 0) * (tokens.dim() - 2)
    return F.pad(tokens, (*other_axes, step, 0))[:, : tokens.shape[1]]


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply an nn.Linear with its current parameters."""
    return freeze_linear(layer)(x)


def freeze_linear(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the map of an nn.Linear with its current parameters.

    Gradient checkpointing recomputes attention later, when the module may hold other parameters,
    for example after `torch.func.functional_call`.
    """
    assert isinstance(layer, nn.Linear)
    weight, bias = upcast(layer.weight), None if layer.bias is None else upcast(layer.bias)

    def apply(x: Tensor) -> Tensor:
        with disable_autocast(x.device):
            return F.linear(upcast(x), weight, bias)

    return apply


def init_normal(layer: nn.Linear) -> nn.Linear:
    """Draw weights from N(0, 0.02^2), set biases to 0, and return the layer."""
    nn.init.normal_(layer.weight, std=0.02)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def init_zero(layer: nn.Linear) -> nn.Linear:
    """Set the weights to 0, and return the layer."""
    nn.init.zeros_(layer.weight)
    return layer
