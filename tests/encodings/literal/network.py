"""Weights of a network of two layers."""

from __future__ import annotations

from torch import Tensor

from zoo.attention.encoding import Encoding


def read_network(encoding: Encoding) -> list[Tensor]:
    """Return the weight and the bias of the first layer, and of the last."""
    parameters = dict(encoding.named_parameters())
    return [parameters[f"net.{name}"] for name in ("0.weight", "0.bias", "2.weight", "2.bias")]
