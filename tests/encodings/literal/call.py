"""One attention call, and the loops over its pairs that references share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from torch import Tensor

Score = Callable[[int, int, int, int], Tensor]
"""(b, h, i, j) -> the score of a pair; i and j are slots of keys."""

Bias = Callable[[int, Tensor, Tensor], Tensor]
"""(h, position of the query, position of the key) -> what is added to the scaled product."""


@dataclass(frozen=True)
class Call:
    """One attention call. The queries are the last N of the M tokens."""

    q: Tensor  # [B, H, N, K]
    k: Tensor  # [B, H, M, K]
    v: Tensor  # [B, H, M, V]
    pos: Tensor  # [M]
    visible: Tensor  # bool [N, M]
    x: Tensor  # [B, M, D]

    @property
    def shift(self) -> int:
        return self.k.shape[2] - self.q.shape[2]

    def query(self, b: int, h: int, i: int) -> Tensor:
        return self.q[b, h, i - self.shift]

    def visible_keys(self, i: int) -> list[int]:
        """List the keys that a query may attend to, in order."""
        return [j for j in range(self.k.shape[2]) if self.visible[i - self.shift, j]]


def score_pairs(call: Call, score: Score) -> Tensor:
    """Compute the score of each pair, [B, H, N, M], -inf where a pair is hidden."""
    table = call.q.new_full((*call.q.shape[:3], call.k.shape[2]), float("-inf"))
    for b, h, i in product(*map(range, call.q.shape[:3])):
        for j in call.visible_keys(i + call.shift):
            table[b, h, i, j] = score(b, h, i + call.shift, j)
    return table


def make_product(call: Call) -> Score:
    """Return the score q_i.k_j / sqrt(K)."""
    root = math.sqrt(call.q.shape[-1])
    return lambda b, h, i, j: call.query(b, h, i) @ call.k[b, h, j] / root


def score_products(call: Call) -> Tensor:
    """Compute q_i.k_j / sqrt(K), [B, H, N, M]."""
    return score_pairs(call, make_product(call))


def score_with_bias(call: Call, bias: Bias) -> Tensor:
    """Compute q_i.k_j / sqrt(K) + bias, [B, H, N, M]."""
    plain = make_product(call)
    return score_pairs(
        call, lambda b, h, i, j: plain(b, h, i, j) + bias(h, call.pos[i], call.pos[j])
    )
