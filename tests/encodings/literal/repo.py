"""RePo: pairs (2t, 2t+1) of q_i and k_i rotate by z_i w_t, z = W_z (silu(W_g x) * (W_c x))."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from literal.call import Call, score_pairs
from literal.functions import sigmoid
from literal.rope import list_frequencies, rotate_vector
from zoo.attention.encoding import Encoding


def choose_positions(encoding: Encoding, x: Tensor) -> Tensor:
    """Return z [H] of a token's states [D]."""
    parameters = dict(encoding.named_parameters())
    gate, content = (parameters[f"{name}.weight"] @ x for name in ("gate", "content"))
    return parameters["position.weight"] @ torch.stack(
        [g * sigmoid(g) * c for g, c in zip(gate, content, strict=True)]
    )


def repo(encoding: Encoding, call: Call, base: float = 10000.0) -> Tensor:
    size = call.q.shape[-1]
    frequencies, _ = list_frequencies(size, base)

    def rotate(vector: Tensor, b: int, h: int, n: int) -> Tensor:
        z = choose_positions(encoding, call.x[b, n])[h]
        angles = [z * w for w in frequencies]
        return rotate_vector(vector, [a.cos() for a in angles], [a.sin() for a in angles])

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        q, k = rotate(call.query(b, h, i), b, h, i), rotate(call.k[b, h, j], b, h, j)
        return q @ k / math.sqrt(size)

    return score_pairs(call, score)
