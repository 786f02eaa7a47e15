"""The mixer of `zoo new`, token by token, for one document in float64."""

from __future__ import annotations

import torch


def fade(x, weights):
    """Return the outputs [N, D] for the states [N, D] of one document."""
    weights = {name: value.double() for name, value in weights.items()}
    outputs, total = [], torch.zeros(x.shape[1], dtype=torch.float64)
    for token in x.double():
        total = total / (1 + torch.exp(-weights["keep"])) + weights["in_proj.weight"] @ token
        outputs.append(weights["out_proj.weight"] @ total)
    return torch.stack(outputs)
