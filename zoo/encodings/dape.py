"""Biases that adapt to the scores they are added to (context-adaptive CAPE, DAPE; Zheng et al. 2024, arXiv:2405.14722)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, Span
from zoo.encodings.common.layers import freeze_linear
from zoo.errors import OptionError
from zoo.registry import Between, register


@register
class DAPE(Encoding):
    """scores A + B + f([A; B]), A the products of q and k, B the biases of the links before

    f is Linear, LeakyReLU(0.01), Linear over the 2H channels of a pair: A's heads, then B's.
    """

    shared, shift_invariant, causal_only, consumes_biases = False, True, True, True
    zero_gradient = ("net.2.bias",)

    def __init__(self, dims: Dims, *, hidden: Annotated[int, Between(1)] = 32) -> None:
        super().__init__(dims)
        self.net = nn.Sequential(
            nn.Linear(2 * dims.heads, hidden), nn.LeakyReLU(), nn.Linear(hidden, dims.heads)
        )

    def modify(self, call: AttentionCall) -> AttentionCall:
        if not call.biases and not call.low_rank_biases:
            raise OptionError(
                "encoding",
                "dape adapts the biases of the links before it, and there is none: [alibi, dape]",
            )

        first, second = freeze_linear(self.net[0]), freeze_linear(self.net[2])

        def rescore(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            bias: Tensor = call.sum_biases(span)  # type: ignore[assignment]
            pairs = torch.cat([scores, bias.expand_as(scores)], dim=1).movedim(
                1, -1
            )  # [B, N, M, 2H]
            return scores + bias + second(self.net[1](first(pairs))).movedim(-1, 1)

        return call.replace(biases=(), low_rank_biases=(), transform_scores=rescore)
