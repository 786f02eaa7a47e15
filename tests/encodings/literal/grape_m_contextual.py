"""Contextual GRAPE: pairs rotate by exp(log_frequencies_t) times the sum of paces."""

from __future__ import annotations

from torch import Tensor

from literal.call import Call
from literal.functions import sigmoid, softplus
from literal.token_angles import score_token_angles
from zoo.attention.encoding import Encoding


def grape_m_contextual(encoding: Encoding, call: Call, activation: str = "sigmoid") -> Tensor:
    def angle(b: int, h: int, t: int, n: int) -> Tensor:
        logit = call.x[b, n] @ encoding.pace.weight[0] + encoding.pace.bias[0]
        pace = sigmoid(logit / 16) if activation == "sigmoid" else softplus(logit)
        return pace * encoding.log_frequencies[t].exp()

    return score_token_angles(call, angle, first=0, last=-1)
