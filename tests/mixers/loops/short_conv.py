"""The gated short convolution of LFM2, token by token, for one document in float64."""

from __future__ import annotations

import torch


def short_conv(x, weights, *, width=3):
    """Return the outputs [N, D] for the states [N, D] of one document."""
    weights = {name: value.double() for name, value in weights.items()}
    x = x.double()
    products, gates = [], []
    for token in x:
        b, c, value = (weights["in_proj.weight"] @ token).chunk(3)
        products.append(b * value)
        gates.append(c)
    outputs = []
    for t in range(len(x)):
        total = torch.zeros_like(x[t])
        for place in range(width):
            source = t - width + 1 + place
            if source >= 0:
                total += weights["conv.weight"][:, 0, place] * products[source]
        outputs.append(weights["out_proj.weight"] @ (gates[t] * total))
    return torch.stack(outputs)
