"""Encodings that turn queries and keys by tables of coordinates alone."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from zoo.attention import Encoding, Terms, Tokens, unrounded
from zoo.encodings.parts.rotation import turn
from zoo.encodings.parts.seen import Panels
from zoo.encodings.parts.turns import seen_waves


class Rotary(Encoding):
    """Turns queries and keys by tables that depend on coordinates alone.

    A shared rotation makes its tables once for all layers, any other once per layer; queries and keys use the same ones,
    and query heads that share a key head turn alike.
    """

    relative = True
    origin = True

    @abstractmethod
    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        """Tables for coordinates [1|B, N, P]."""

    def waves(self, like: Tensor) -> Tensor | None:
        """Wave vectors [P, 1|G, pairs] in radians per unit of each coordinate; None where turns have none."""
        return None

    def findings(self, terms: Terms) -> Panels:
        waves = self.waves(terms.keys.pos)
        return () if waves is None else seen_waves(waves, self, terms)

    def turn(self, x: Tensor, *tables: Tensor) -> Tensor:
        """Heads [B, H, N, K] turned by the tables; by default pairs (2i, 2i + 1) by a table of `circle`."""
        return turn(x, *tables)

    def embed(self, tokens: Tokens) -> Tokens:
        return self._prepared(tokens) if self.shared else tokens

    def annotate(self, tokens: Tokens) -> Tokens:
        return tokens if self.shared and self.name in tokens.tables else self._prepared(tokens)

    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        tables = self.tables(tokens)
        if self.dims.groups == self.dims.heads:
            return self.turn(q, *tables)
        sharing = q.unflatten(1, (self.dims.groups, -1)).unbind(2)  # of [B, G, N, K], one query head of each group
        return torch.stack([self.turn(one, *tables) for one in sharing], dim=2).flatten(1, 2)

    def turn_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self.turn(k, *self.tables(tokens))

    def tables(self, tokens: Tokens) -> tuple[Tensor, ...]:
        """What `prepare` gave for these tokens, made now if it was not yet."""
        return self._prepared(tokens, keep=True).tables[self.name]

    def _prepared(self, tokens: Tokens, keep: bool = False) -> Tokens:
        """The same tokens with this encoding's tables; those that are there are kept if asked."""
        if keep and self.name in tokens.tables:
            return tokens
        with unrounded(tokens.pos.device):
            return tokens.replace(tables={**tokens.tables, self.name: self.prepare(tokens.pos)})
