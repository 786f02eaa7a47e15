"""What a layer remembers of tokens that came before, whatever the encoding."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention.tokens import Tokens


class Context:
    """Remembers nothing: each pass sees its own tokens."""

    def states(self, layer: int, tokens: Tokens) -> Tokens:
        """The tokens that keys and values are projected from."""
        return tokens

    def keys(self, layer: int, k: Tensor, v: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tokens]:
        """All keys and values [B, H, M, ..] to attend to, given this pass's own, and their tokens."""
        return k, v, tokens


class KeyValueCache(Context):
    """Remembers keys and values, finished: a cached key is never touched again."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor, Tokens]] = {}

    def keys(self, layer: int, k: Tensor, v: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tokens]:
        tokens = tokens.bare()
        if layer in self._layers:
            old_k, old_v, old_tokens = self._layers[layer]
            k, v, tokens = torch.cat([old_k, k], dim=2), torch.cat([old_v, v], dim=2), old_tokens.join(tokens)
        self._layers[layer] = k, v, tokens
        return k, v, tokens


class SegmentMemory(Context):
    """Remembers the inputs of the last `length` tokens of each layer, without gradient (Transformer-XL, Dai et al. 2019)."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._layers: dict[int, Tokens] = {}

    def states(self, layer: int, tokens: Tokens) -> Tokens:
        joined = self._layers[layer].join(tokens) if layer in self._layers else tokens
        if self.length:
            self._layers[layer] = joined.last(min(self.length, len(joined))).detach()
        return joined
