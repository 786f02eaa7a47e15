"""The gated delta rule as published, token by token, for one document in float64."""

from __future__ import annotations

import math

import torch


def gated_delta(
    x,
    weights,
    *,
    heads,
    decay="head",
    conv=4,
    doubled=False,
    eps=1e-6,
    output_eps=None,
    gate="auto",
):
    """Return the outputs [N, D] for the states [N, D] of one document.

    `weights` are the parameters of the layer by name.
    """
    weights = {name: value.double() for name, value in weights.items()}
    x = x.double()
    rows = [compute_channels(x, weights, t, conv) for t in range(len(x))]
    value_heads, value_dim = len(weights["a_log"]), len(weights["norm.weight"])
    key_dim = len(weights["query.weight"]) // heads
    state = torch.zeros(value_heads, key_dim, value_dim, dtype=torch.float64)
    if gate == "auto":
        gate = "silu" if decay == "head" else "sigmoid"

    outputs = []
    for t, token in enumerate(x):
        q, k, v = rows[t].split([heads * key_dim, heads * key_dim, value_heads * value_dim])
        beta = torch.sigmoid(weights["beta.weight"] @ token) * (2 if doubled else 1)
        pieces = []
        for head in range(value_heads):
            source = head // (value_heads // heads)
            own = slice(source * key_dim, (source + 1) * key_dim)
            query = q[own] / math.sqrt(float(q[own] @ q[own]) + eps) / math.sqrt(key_dim)
            key = k[own] / math.sqrt(float(k[own] @ k[own]) + eps)
            value = v[head * value_dim : (head + 1) * value_dim]
            if decay == "head":
                step = weights["decay.weight"][head] @ token + weights["dt_bias"][head]
                factor = torch.exp(-torch.exp(weights["a_log"][head]) * torch.log1p(step.exp()))
                factor = factor.expand(key_dim)
            else:
                step = weights["decay_up.weight"] @ (weights["decay_down.weight"] @ token)
                step = step[own] + weights["dt_bias"][own]
                factor = torch.exp(-torch.exp(weights["a_log"][head]) * torch.log1p(step.exp()))
            state[head] = factor[:, None] * state[head]
            update = beta[head] * (value - state[head].T @ key)
            state[head] = state[head] + torch.outer(key, update)
            out = state[head].T @ query
            out = (
                weights["norm.weight"] * out / torch.sqrt((out * out).mean() + (output_eps or eps))
            )
            pieces.append(out)
        out = torch.cat(pieces)
        if gate is not None:
            if "gate.weight" in weights:
                opened = weights["gate.weight"] @ token
            else:
                opened = weights["gate_up.weight"] @ (weights["gate_down.weight"] @ token)
            out = out * (opened if gate == "silu" else 1) * torch.sigmoid(opened)
        outputs.append(weights["out.weight"] @ out)
    return torch.stack(outputs)


def compute_channels(x, weights, t, conv):
    """Return queries, keys and values of token t, after the convolution."""
    projections = torch.cat([weights[f"{name}.weight"] for name in ("query", "key", "value")])
    if not conv:
        return projections @ x[t]
    total = torch.zeros(len(projections), dtype=torch.float64)
    for place in range(conv):
        source = t - conv + 1 + place
        if source >= 0:
            total += weights["conv.weight"][:, 0, place] * (projections @ x[source])
    return total * torch.sigmoid(total)
