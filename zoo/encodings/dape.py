"""Biases that an MLP adapts to the scores (DAPE; Zheng et al. 2024, arXiv:2405.14722)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, Span
from zoo.encodings.common.layers import freeze_linear
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class DAPE(Encoding):
    """scores A + B + f([A; B]), A = q k^T / sqrt(K), B the biases of the encodings before it

    f is Linear, LeakyReLU(0.01), Linear over the 2H channels of a pair: A's heads, then B's.

    Args:
        hidden: Units of the hidden layer of f.
    """

    part = "rows"
    reads_positions = False
    shared, shift_invariant, causal_only, consumes_biases = False, True, True, True
    zero_gradient = ("net.2.bias",)

    def __init__(self, dims: Dims, *, hidden: Annotated[int, Between(1)] = 32) -> None:
        super().__init__(dims)
        fc1, fc2 = nn.Linear(2 * dims.heads, hidden), nn.Linear(hidden, dims.heads)
        self.net = nn.Sequential(fc1, nn.LeakyReLU(), fc2)

    def modify(self, call: AttentionCall) -> AttentionCall:
        if not call.biases and not call.low_rank_biases:
            message = "dape adapts the biases of encodings before it, and there is none"
            raise OptionError("encoding", f"{message}: write [alibi, dape]")
        # Activation checkpointing may call `adapt_bias` again after the parameters changed.
        fc1, fc2 = freeze_linear(self.net[0]), freeze_linear(self.net[2])

        def adapt_bias(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            bias: Tensor = call.sum_biases(span)  # type: ignore[assignment]
            pairs = torch.cat([scores, bias.expand_as(scores)], dim=1).movedim(1, -1)
            change = fc2(self.net[1](fc1(pairs))).movedim(-1, 1)  # pairs [B, N, M, 2H]
            return scores + bias + change

        return call.replace(biases=(), low_rank_biases=(), transform_scores=adapt_bias)
