"""TAPE: RoPE's frames, which each layer changes by what attention mixed of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from literal.rope import list_frequencies, rotate_vector
from zoo.attention.encoding import Encoding
from zoo.attention.layer import SelfAttention


def tape(
    layers: Sequence[SelfAttention], encodings: Sequence[Encoding], x: Tensor, pos: Tensor
) -> Tensor:
    """Return states [N, D] after causal layers with residuals; nothing changes the last frames."""
    dims = layers[0].dims
    count, heads, size = len(x), dims.heads, dims.head_dim
    waves = torch.tensor(list_frequencies(size)[0], dtype=x.dtype)
    rope = torch.stack(
        [torch.stack([(p * waves).cos(), (p * waves).sin()]) for p in pos]
    )  # [N, 2, K/2]
    frames = torch.stack([rope] * heads, dim=1)  # [N, H, 2, K/2]
    for number, (layer, encoding) in enumerate(zip(layers, encodings, strict=True)):
        q = (x @ layer.q_proj.weight.T + layer.q_proj.bias).view(count, heads, size)
        k = (x @ layer.k_proj.weight.T).view(count, heads, size)
        v = (x @ layer.v_proj.weight.T + layer.v_proj.bias).view(count, heads, size)
        out, mixed = torch.zeros_like(v), torch.zeros_like(frames)
        for h, i in product(range(heads), range(count)):
            query = rotate_vector(q[i, h], *frames[i, h])
            keys = range(i + 1)
            scores = torch.stack(
                [query @ rotate_vector(k[j, h], *frames[j, h]) / math.sqrt(size) for j in keys]
            )
            for j, weight in enumerate(scores.exp() / scores.exp().sum()):
                out[i, h] += weight * v[j, h]
                mixed[i, h] += weight * frames[j, h]
        x = x + out.view(count, -1) @ layer.o_proj.weight.T + layer.o_proj.bias
        if number < len(layers) - 1:
            frames = torch.stack(
                [
                    update_frames(encoding, *of_token)
                    for of_token in zip(frames, mixed, x, strict=True)
                ]
            )
    return x


def update_frames(encoding: Encoding, frame: Tensor, mixed: Tensor, x: Tensor) -> Tensor:
    """Return a token's frames after a layer.

    Args:
        encoding: The encoding of the layer.
        frame: Frames [H, 2, K/2] before the layer.
        mixed: Frames of all tokens, mixed by attention, [H, 2, K/2].
        x: State of the token, [D].
    """
    heads = range(len(frame))
    first = torch.stack(
        [frame[h] + sum(encoding.mix.weight[h, e] * mixed[e] for e in heads) for h in heads]
    )
    gate = encoding.read.weight @ (x / x.square().mean().sqrt())  # [R]
    gate = gate / (1 + (-gate).exp())
    ranks = range(len(gate))
    inner = [gate[r] * sum(encoding.into.weight[r, h] * first[h] for h in heads) for r in ranks]
    return torch.stack(
        [first[h] + sum(encoding.out.weight[h, r] * inner[r] for r in ranks) for h in heads]
    )
