"""DAPE: A + B + f([A; B]) over the heads of a pair, A the products and B the biases before it."""

from __future__ import annotations

import torch
from torch import Tensor

from literal.call import Bias, Call, make_product, score_pairs
from literal.network import read_network
from zoo.attention.encoding import Encoding


def dape(encoding: Encoding, call: Call, bias: Bias) -> Tensor:
    w0, b0, w2, b2 = read_network(encoding)
    plain, heads = make_product(call), range(call.q.shape[1])

    def score(b: int, h: int, i: int, j: int) -> Tensor:
        a = torch.stack([plain(b, g, i, j) for g in heads])
        added = torch.stack([bias(g, call.pos[i], call.pos[j]) for g in heads])
        hidden = w0 @ torch.cat([a, added]) + b0
        hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
        return a[h] + added[h] + w2[h] @ hidden + b2[h]

    return score_pairs(call, score)
