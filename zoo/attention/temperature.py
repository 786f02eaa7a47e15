"""Factors of queries that grow with the position (the temperature of Llama 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from zoo.attention.tokens import Tokens, upcast
from zoo.errors import OptionError
from zoo.options import Between
from zoo.options.signature import Option
from zoo.options.validation import check_options


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """Multiply the query at position p by 1 + scale log(1 + floor((p + offset) / floor)).

    Positions count from 0, as everywhere in zoo, and restart in each document. The released code of
    Llama 4 counts them from 1, which is `offset` 1. Positions before 0, where training may move
    tokens, have the factor 1. The query of a token without a position keeps its length.
    """

    floor: Annotated[float, Between(1)] = 8192.0
    """Number of positions that share a factor; those before it have the factor 1."""

    scale: Annotated[float, Between(0)] = 0.1
    """Growth of the factor with the logarithm of the position."""

    offset: Annotated[float, Between(0)] = 0.0
    """Number that is added to positions."""

    def factors(self, tokens: Tokens) -> Tensor:
        """Compute the factors of the queries of text tokens, [1|B, 1, N, 1]."""
        position = upcast(tokens.index)  # [1|B, N, 1]
        steps = torch.floor((position + self.offset) / self.floor)
        factors = 1 + self.scale * torch.log1p(steps.clamp(min=0))
        if tokens.has_position is not None:
            factors = torch.where(tokens.has_position[..., None], factors, 1.0)
        return factors[:, None]

    def scale_queries(self, q: Tensor, tokens: Tokens) -> Tensor:
        """Multiply queries [B, H, N, K] by the factors of their tokens."""
        return (q * self.factors(tokens)).to(q.dtype)

    def check_axes(self, axes: int) -> None:
        """Check that positions on so many axes are those of texts.

        Raises:
            OptionError: They are those of a grid.
        """
        if axes != 1:
            message = f"positions on {axes} axes have no order by which a temperature could grow"
            raise OptionError("temperature", f"{message}; leave it out")


TemperatureSpec = Temperature | Mapping[str, float]
"""A temperature, or a mapping `{"floor": 8192, "scale": 0.1}` of its options."""


def read_temperature(given: TemperatureSpec | None) -> Temperature | None:
    """Return a temperature that a Python program passed, in any accepted form.

    Raises:
        OptionError: An option is unknown, or has a value that cannot be used.
    """
    if given is None or isinstance(given, Temperature):
        return given
    schema = {"temperature": Option(Temperature)}
    typed: Temperature = check_options(schema, {"temperature": given})["temperature"]
    return typed
