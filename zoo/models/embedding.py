"""Token numbers to states, and states to logits; the weights that a language model starts from."""

from __future__ import annotations

from collections import Counter
from typing import Self

import torch
from torch import Tensor, nn

from zoo.attention.layer import Projection, project
from zoo.data.spec import Vocabulary
from zoo.models.transformer import Block, Transformer


def document_positions(documents: Tensor) -> Tensor:
    """[B, N] -> [B, N]: each token's place, counted from 0 within its run of equal document numbers."""
    slots = torch.arange(documents.shape[1], device=documents.device)
    fresh = torch.ones_like(documents, dtype=torch.bool)
    fresh[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return slots - torch.where(fresh, slots, 0).cummax(1).values


def document_lengths(documents: Tensor) -> Tensor:
    """[B, N] -> [B, N]: how many tokens each token's document has."""
    return (documents[:, None] == documents[..., None]).sum(-1)


INIT_STD = 0.02


class TokenEmbedding(nn.Module):
    """A table with a row per token and, after them, `extra` rows that are read but never predicted.

    `tied` predicts with the same table (Press and Wolf 2017, arXiv:1608.05859). `scaled` multiplies what is read by the
    square root of dim and draws the table N(0, 1 / dim), so that tokens are as large as sinusoids added to them (Vaswani
    et al. 2017); else it is N(0, 0.02^2).
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        tie_embeddings: bool,
        scale_embeddings: bool,
        extra: int = 0,
    ) -> None:
        super().__init__()
        self.vocabulary, self.extra = vocabulary, extra
        self.count, self.scale = len(vocabulary), dim**0.5 if scale_embeddings else 1.0
        self.table = nn.Embedding(self.count + extra, dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5 if scale_embeddings else INIT_STD)
        self.head = None if tie_embeddings else Projection(dim, self.count, bias=False)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=INIT_STD)

    def read(self, inputs: Tensor) -> Tensor:
        """int64 [B, N] -> [B, N, D]"""
        return self.table(inputs) * self.scale

    def logits(self, x: Tensor) -> Tensor:
        """[B, N, D] -> [B, N, V]"""
        return project(x, self.table.weight[: self.count]) if self.head is None else self.head(x)

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        """Of another vocabulary, the rows of the tokens that both have."""
        if source.extra == self.extra and source.vocabulary.plain() == self.vocabulary.plain():
            return value
        found = self.get_parameter(name).detach().clone()
        here, there = _pieces(self.vocabulary), _pieces(source.vocabulary)
        shared = here.keys() & there.keys()
        if not shared or value.shape[1] != found.shape[1]:
            return None
        for piece in shared:
            found[here[piece]] = value[there[piece]]
        return found


def _pieces(vocabulary: Vocabulary) -> dict[str, int]:
    """The token of each piece of text that is one token's alone; what is no character by itself is none."""
    pieces = [vocabulary.decode([token]) for token in range(len(vocabulary))]
    twice = {piece for piece, count in Counter(pieces).items() if count > 1}
    return {
        piece: token
        for token, piece in enumerate(pieces)
        if piece not in twice and "\ufffd" not in piece
    }


def init_weights(trunk: Transformer) -> None:
    """Draw the linear layers of the blocks as GPT-2 does (Radford et al. 2019): N(0, 0.02), no biases.

    Those that end a residual branch are drawn smaller by the square root of the number of branches.
    """
    branches = 2 * len(trunk.blocks)
    for block in trunk.blocks:
        assert isinstance(block, Block)
        ends = (block.attn.o_proj, block.mlp.down_proj)
        for module in block.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(
                    module.weight, std=INIT_STD * (branches**-0.5 if module in ends else 1)
                )
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
