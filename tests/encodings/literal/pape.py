"""PaPE: q_i.k_j / sqrt(K) + sum_m (-a_im (u_im - u_jm)^2 + b_im (u_im - u_jm)) / sqrt(K), u = W p."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from literal.call import Call, make_product, score_pairs
from literal.functions import softplus
from zoo.attention.encoding import Encoding


def list_parabolas(encoding: Encoding, h: int, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return a, b and the direction [P] of each parabola of a head, for a query's states [D]."""
    tensors = dict(encoding.named_parameters()) | dict(encoding.named_buffers())
    heads, axes = encoding.dims.heads, encoding.dims.axes
    if "scale" in tensors:
        a = softplus(tensors["a.weight"][h] @ x)
        rows = torch.eye(axes, dtype=x.dtype) * tensors["scale"][h]
        return [(a, torch.zeros_like(a), row) for row in rows]
    count = len(tensors["a.weight"]) // heads
    rows = range(h * count, (h + 1) * count)
    return [
        (
            softplus(tensors["a.weight"][m] @ x),
            tensors["b.weight"][m] @ x,
            tensors["position.weight"][m],
        )
        for m in rows
    ]


def measure_bias(encoding: Encoding, h: int, x: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return the bias of a pair at coordinates [P] of the query, whose states are x [D], and key."""
    total = torch.zeros((), dtype=x.dtype)
    for a, b, w in list_parabolas(encoding, h, x):
        d = w @ query - w @ key
        total = total - a * d**2 + b * d
    return total / math.sqrt(encoding.dims.head_dim)


def tabulate(encoding: Encoding, x: Tensor, pos: Tensor) -> Tensor:
    """Evaluate the biases [H, N, N] of tokens with states [N, D] at coordinates [N, P]."""
    heads, places = range(encoding.dims.heads), range(len(pos))
    return torch.stack(
        [
            torch.stack(
                [
                    torch.stack([measure_bias(encoding, h, x[i], pos[i], pos[j]) for j in places])
                    for i in places
                ]
            )
            for h in heads
        ]
    )


def pape(encoding: Encoding, call: Call) -> Tensor:
    plain = make_product(call)

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        query, key = call.pos[i].reshape(-1), call.pos[j].reshape(-1)
        return plain(b, h, i, j) + measure_bias(encoding, h, call.x[b, i], query, key)

    return score_pairs(call, score)


def widen_as_released(
    encoding: Encoding, q: Tensor, k: Tensor, x: Tensor, pos: Tensor
) -> tuple[Tensor, Tensor]:
    """Widen queries and keys [B, H, N, K] as the published module does, at coordinates [N, P].

    Their products over sqrt(K) are the scores.
    """
    tensors = dict(encoding.named_parameters()) | dict(encoding.named_buffers())
    heads = encoding.dims.heads
    batch, count = x.shape[:2]

    def split(values: Tensor) -> Tensor:
        return values.view(batch, count, heads, -1).permute(0, 2, 1, 3)

    a = torch.log1p(torch.exp(split(x @ tensors["a.weight"].T)))
    ones = torch.ones(batch, heads, count, 1, dtype=x.dtype)
    if "scale" in tensors:
        u = (pos[None, None] * tensors["scale"].view(1, heads, 1, 1)).expand(batch, -1, -1, -1)
        a = a.expand(-1, -1, -1, pos.shape[-1])
        slopes_q, slopes_k = [], []
    else:
        u = split((pos @ tensors["position.weight"].T).expand(batch, -1, -1))
        b = split(x @ tensors["b.weight"].T)
        slopes_q, slopes_k = [(b * u).sum(-1, keepdim=True), b], [ones, -u]
    wide_q = torch.cat([q, -(a * u**2).sum(-1, keepdim=True), a, 2 * a * u, *slopes_q], dim=-1)
    wide_k = torch.cat([k, ones, -(u**2), u, *slopes_k], dim=-1)
    return wide_q, wide_k
