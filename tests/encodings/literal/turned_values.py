"""Values that turn as keys do, and outputs that turn back: o_i = R_i^-1 sum_j w_ij R_j v_j."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from literal.call import Call
from literal.functions import softmax

Reference = Callable[[Call], Tensor]
"""The scores (R_i q_i).(R_j k_j) / sqrt(K) of a call, -inf where a pair is hidden."""


def attend_turned(scores: Reference, call: Call, rotation: Reference | None = None) -> Tensor:
    """Compute the outputs [B, H, N, K] by channel: that of a unit vector e is sum_j w_ij e^T R_i^-1 R_j v_j.

    Args:
        scores: The scores of the encoding.
        call: Its call, with values as wide as keys.
        rotation: Scores without the factor that sharpens them, where they have one.
    """
    weights, size = softmax(scores(call)), call.q.shape[-1]
    outputs = []
    for unit in torch.eye(size, dtype=call.q.dtype) * math.sqrt(size):
        turned = (rotation or scores)(replace(call, q=unit.expand_as(call.q), k=call.v))
        outputs.append((weights * turned.masked_fill(~call.visible, 0)).sum(-1))
    return torch.stack(outputs, dim=-1)
