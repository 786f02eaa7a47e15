"""Biases that adapt to the scores they are added to (context-adaptive CAPE, DAPE; Zheng et al. 2024, arXiv:2405.14722)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import Dims, Encoding, Span, Terms
from zoo.encodings.common.layers import held
from zoo.errors import Invalid
from zoo.registry import Between, register


@register
class DAPE(Encoding):
    """scores A + B + f([A; B]), A the products of q and k, B the biases of the links before

    f is Linear, LeakyReLU(0.01), Linear over the 2H channels of a pair: A's heads, then B's.
    """

    shared, relative, causal, absorbs = False, True, True, True
    row_constant = ("net.2.bias",)

    def __init__(self, dims: Dims, *, hidden: Annotated[int, Between(1)] = 32) -> None:
        super().__init__(dims)
        self.net = nn.Sequential(
            nn.Linear(2 * dims.heads, hidden), nn.LeakyReLU(), nn.Linear(hidden, dims.heads)
        )

    def terms(self, terms: Terms) -> Terms:
        if not terms.biases and not terms.factors:
            raise Invalid(
                "encoding",
                "dape adapts the biases of the links before it, and there is none: [alibi, dape]",
            )

        first, second = held(self.net[0]), held(self.net[2])

        def rescore(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            bias: Tensor = terms.added(span)  # type: ignore[assignment]
            pairs = torch.cat([scores, bias.expand_as(scores)], dim=1).movedim(
                1, -1
            )  # [B, N, M, 2H]
            return scores + bias + second(self.net[1](first(pairs))).movedim(-1, 1)

        return terms.replace(biases=(), factors=(), rescore=rescore)
