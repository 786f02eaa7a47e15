"""Compare what attentions compute in an equipped model with what they compute in the model itself.

Each attention is compared on its own: in the second pass it hands on what it returned in the first,
so that all layers have the same input, and rounding does not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# Largest relative difference of an output by rounding alone. Half precision rounds scores, which
# may be far above 1, so that single tokens differ by more: there the median of tokens counts.
FULL, HALF = 3e-4, 0.1


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


def record_attentions(
    run: Callable[[], Any], attentions: Sequence[nn.Module], replay: Sequence[Tensor] = ()
) -> list[Tensor]:
    """Record the output [B, N, D] of each attention in one pass.

    Args:
        run: Runs the model.
        attentions: The attentions, in their order.
        replay: The outputs that they hand on instead of their own; empty: their own.
    """
    found: dict[int, Tensor] = {}

    def watch(number: int) -> Callable[[nn.Module, Any, Any], Any]:
        def record(module: nn.Module, args: Any, output: Any) -> Any:
            is_tuple = isinstance(output, tuple)
            found[number] = (output[0] if is_tuple else output).clone()
            if not replay:
                return None
            return (replay[number], *output[1:]) if is_tuple else replay[number]

        return record

    handles = [
        attention.register_forward_hook(watch(number))
        for number, attention in enumerate(attentions)
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return [found[number] for number in range(len(attentions))]


def find_difference(own: Sequence[Tensor], found: Sequence[Tensor]) -> tuple[int, float] | None:
    """Return the first layer whose outputs differ by more than rounding, and by how much.

    Args:
        own: Outputs [B, N, D] of the attentions in the model itself.
        found: Those in the equipped model.
    """
    for number, (right, other) in enumerate(zip(own, found, strict=True)):
        is_full = right.dtype in (torch.float32, torch.float64)
        right, other = right.double(), other.double()
        scale = right.norm(dim=-1).mean().clamp(min=1e-30)
        errors = (other - right).norm(dim=-1) / scale
        error = float(errors.max() if is_full else errors.median())
        # A comparison with NaN is false, which counts as a difference.
        if not error <= (FULL if is_full else HALF):
            return number, error
    return None
