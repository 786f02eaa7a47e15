"""Build the installed class of a model anew, with the same configuration and weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


def find_installed_class(model: nn.Module) -> type | None:
    """Return the class of transformers that has the name of a model's class."""
    name = type(model).__name__
    return next(
        (
            cls
            for cls in type(model).__mro__
            if cls.__module__.startswith("transformers.models.") and cls.__name__ == name
        ),
        None,
    )


def build_twin(model: Any) -> nn.Module | None:
    """Return the installed class, built from the configuration with the same weights.

    Returns:
        The twin in evaluation mode; None if no such class is installed, or its weights differ.
    """
    cls: Any = find_installed_class(model)
    if cls is None:
        return None
    config = copy.deepcopy(model.config)
    with torch.random.fork_rng(devices=()):
        try:
            twin = cls._from_config(
                config, attn_implementation=config._attn_implementation, dtype=torch.float32
            )
            missing, unexpected = twin.load_state_dict(model.state_dict(), strict=False)
        except (TypeError, ValueError, RuntimeError):
            return None
    if missing or unexpected:
        return None
    types = dict(model.named_parameters())
    for name, parameter in twin.named_parameters():
        # Buffers stay as they were built: rounding would hide what became of the model's own.
        parameter.data = parameter.data.to(types[name])
    return twin.eval()
