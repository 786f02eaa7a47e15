"""Ablations of heads: run a model in which the outputs of some heads are 0."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention.layer import HeadLayer
from zoo.diagnostics.capture import find_attentions, find_equipped


@contextmanager
def ablate_heads(model: nn.Module, heads: Mapping[int, Collection[int]]) -> Iterator[None]:
    """Within the context, set the outputs of heads to 0 before the output projection.

    In zoo's own models this is after the norm and the gate of outputs, if a layer has them.

    Args:
        model: A model with attention layers of zoo, its own or observed ones.
        heads: {index of a layer: indices of its heads, from 0}.
    """

    def clear_input(layer: HeadLayer, _: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        merged, *unchanged = arguments  # [B, N, H V]
        split = merged.unflatten(-1, (layer.dims.heads, -1))
        cleared = clear_heads(split, heads[numbers[layer]], -2)
        return cleared.flatten(-2), *unchanged

    def clear_output(number: int, out: Tensor) -> Tensor:
        return clear_heads(out, heads[number], 1) if number in heads else out

    # zoo's own layers merge heads before `o_proj`; other models pass them through a hook
    numbers = find_attentions(model)
    with ExitStack() as stack:
        for layer, number in numbers.items():
            if number in heads:
                hook = layer.o_proj.register_forward_pre_hook(partial(clear_input, layer))
                stack.callback(hook.remove)
        for equipment in find_equipped(model):
            equipment.output_hooks.append(clear_output)
            stack.callback(equipment.output_hooks.remove, clear_output)
        yield


def clear_heads(outputs: Tensor, heads: Collection[int], axis: int) -> Tensor:
    """Set the outputs of some heads to 0, of a tensor with an axis of heads."""
    is_cleared = torch.zeros(outputs.shape[axis], dtype=torch.bool, device=outputs.device)
    is_cleared[[*heads]] = True
    shape = [1] * outputs.ndim
    shape[axis] = -1
    # no product with 0, which is NaN for an infinite output
    return outputs.masked_fill(is_cleared.view(shape), 0)
