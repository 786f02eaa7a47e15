"""Tables of vectors that stand for places, multiplied with one another and with words."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from zoo.attention import precise


def gram(table: Tensor) -> Tensor:
    """PE(i).PE(j), [N, N], of a table [N, D]."""
    table = precise(table)
    return table @ table.mT


def correlations(word: Tensor, position: Tensor, query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """The four parts of (w_i + p_i) Q (w_j + p_j) K / sqrt(K), each [H, N, N], by name, averaged over samples.

    TUPE (Ke, He & Liu 2020, arXiv:2006.15595), equation 6 and figure 2: word to word, word to position, position to word,
    position to position, of the first layer of BERT for a batch of sentences. Words [B, N, D] and positions [N, D] or
    [B, N, D] are what is added up before the projections query [H, K, D] and key [H, K, D]; rows are queries. The parts
    add up to the scores where the layer projects that sum itself, with no norm or bias between.
    """
    parts = {"word": precise(word), "position": precise(position).expand(len(word), -1, -1)}
    queries, keys = (
        {name: torch.einsum("bnd,hkd->bhnk", part, precise(weight)) for name, part in parts.items()}
        for weight in (query, key)
    )
    scale = query.shape[1] ** -0.5 / len(word)
    return {
        f"{one} to {other}": scale * torch.einsum("bhnk,bhmk->hnm", queries[one], keys[other])
        for one, other in product(parts, parts)
    }
