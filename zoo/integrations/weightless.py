"""Run a model whose weights are on the meta device, to find its structure.

Each projection becomes a linear map without weights that picks channels of its input, so that a
large model runs in a second: what rotates, what mixes tokens and what is masked does not change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

LARGEST = 2**22  # numbers of a parameter that is drawn; a larger one repeats its last axis


def is_weightless(model: nn.Module) -> bool:
    """Return whether a model is on the meta device."""
    return next(model.parameters()).is_meta


@contextmanager
def stand_in_weights(model: PreTrainedModel) -> Iterator[set[str]]:
    """Give a model on the meta device the means to run on a CPU for a while.

    Args:
        model: The model; afterwards it is as it was.

    Yields:
        The paths of the modules whose buffers are 1, because nobody knows their values.
    """
    unknown = set()
    draw = torch.Generator("cpu").manual_seed(0)
    with ExitStack() as stack, torch.device("cpu"):
        for path, module in model.named_modules():
            forward = find_stand_in(module)
            if forward is not None:
                stack.callback(delattr, module, "forward")
                module.forward = forward
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.is_meta:
                    stack.callback(module._parameters.__setitem__, name, parameter)
                    # Some models ask the weights that they do not use here for their device.
                    unused = torch.zeros(1, dtype=parameter.dtype).expand(parameter.shape)
                    values = _draw(parameter, draw) if forward is None else unused
                    module._parameters[name] = nn.Parameter(values, requires_grad=False)
            buffers = {k: one for k, one in module._buffers.items() if one is not None}
            if any(buffer.is_meta for buffer in buffers.values()):
                rebuilt = _rebuild(module, model)
                if not rebuilt:
                    unknown.add(path)
                    rebuilt = {name: torch.ones(one.shape) for name, one in buffers.items()}
                for name, buffer in buffers.items():
                    stack.callback(module._buffers.__setitem__, name, buffer)
                    module._buffers[name] = rebuilt[name]
        yield unknown


def find_stand_in(module: Any) -> Callable[..., Tensor] | None:
    """Return a forward without weights for a projection or an embedding on the meta device."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_meta:
        return None
    # A subclass may compute something else.
    if type(module) is nn.Linear:
        return partial(_project, module.out_features, weight.dtype)
    if type(module) is Conv1D:
        return partial(_project, module.nf, weight.dtype)
    if type(module) is nn.Embedding:
        return partial(_embed, module.embedding_dim, weight.dtype)
    return None


def _project(width: int, dtype: torch.dtype, x: Tensor) -> Tensor:
    """Map [..., D] to [..., width]: each channel is one of the input with a sign and a size."""
    places = torch.arange(width)
    # 31 has no factor in common with the dims of models, so that all channels are used.
    signs = torch.cos(places * 1.7) + 0.1
    return x[..., (places * 31 + 7) % x.shape[-1]] * signs.to(x)


def _embed(width: int, dtype: torch.dtype, ids: Tensor) -> Tensor:
    """Return rows [..., width] of a table of numbers that look random."""
    places = torch.arange(1, width + 1, dtype=torch.float64)
    phases = (ids[..., None].double() + 1) * (places.sqrt() * 12.9898)
    return (torch.sin(phases * 43.7) * 1.4).to(dtype)


def _draw(like: Tensor, draw: torch.Generator) -> Tensor:
    """Return a parameter [..., D] with random numbers."""
    shape = like.shape
    if like.numel() <= LARGEST:
        values = torch.randn(shape, generator=draw)
    else:
        values = torch.randn(shape[-1:], generator=draw).expand(shape)
    spread = 0.2 if len(shape) > 1 else 0.3
    return (values * spread + (1.0 if len(shape) <= 1 else 0.0)).to(like.dtype)


def _rebuild(module: nn.Module, model: PreTrainedModel) -> dict[str, Tensor]:
    """Compute the buffers of a module anew; empty if its configuration alone does not tell them."""
    config = getattr(module, "config", model.config)
    kind: Any = type(module)
    for arguments in ((copy.copy(config),), ()):
        try:
            fresh = dict(kind(*arguments).named_buffers(recurse=False))
        except (TypeError, AttributeError, ValueError):
            continue
        buffers = {name: one for name, one in module._buffers.items() if one is not None}
        if all(name in fresh and fresh[name].shape == one.shape for name, one in buffers.items()):
            return fresh
    return {}
