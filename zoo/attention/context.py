"""What a layer remembers of tokens that came before, whatever the encoding."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from zoo.attention.tokens import Tokens


class Context:
    """Remembers nothing: each pass sees its own tokens. `seen` counts the tokens of earlier passes."""

    seen = 0

    def states(self, layer: int, tokens: Tokens) -> Tokens:
        """The tokens that keys and values are projected from."""
        return tokens

    def before(self, layer: int, heads: Tensor, tokens: Tokens) -> Tensor:
        """Heads [B, G, M, ..] of the token before each, 0 where there is none in its document."""
        return _before(heads, tokens)

    def keys(self, layer: int, k: Tensor, v: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tokens]:
        """All keys and values [B, G, M, ..] to attend to, given this pass's own, and their tokens."""
        return k, v, tokens

    def copy(self) -> Context:
        """A context that goes on from what this one remembers, and leaves this one as it is."""
        made = copy(self)
        vars(made).update((name, dict(kept)) for name, kept in vars(self).items() if isinstance(kept, dict))
        return made

    def take(self, other: Context) -> None:
        """Remember what a copy of this context remembers."""
        vars(self).update(vars(other))


class KeyValueCache(Context):
    """Remembers keys and values, finished: a cached key is never touched again."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor, Tokens]] = {}
        self._last: dict[int, tuple[Tensor, Tokens]] = {}

    def before(self, layer: int, heads: Tensor, tokens: Tokens) -> Tensor:
        count, tokens = heads.shape[2], tokens.bare()
        last = heads[:, :, -1:], tokens.last(1)
        if layer in self._last:
            old_heads, old_tokens = self._last[layer]
            heads, tokens = torch.cat([old_heads, heads], dim=2), old_tokens.join(tokens)
        self._last[layer] = last
        return _before(heads, tokens)[:, :, -count:]

    def keys(self, layer: int, k: Tensor, v: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tokens]:
        tokens = tokens.bare()
        if layer in self._layers:
            old_k, old_v, old_tokens = self._layers[layer]
            k, v, tokens = torch.cat([old_k, k], dim=2), torch.cat([old_v, v], dim=2), old_tokens.join(tokens)
        self._layers[layer] = k, v, tokens
        self.seen = k.shape[2]
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
        if layer == 0:
            self.seen += len(tokens)
        return joined

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, as plain data."""
        layers = {layer: {**vars(tokens), "tables": {}} for layer, tokens in self._layers.items()}
        return {"seen": self.seen, "layers": layers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.seen = state["seen"]
        self._layers = {layer: Tokens(**fields) for layer, fields in state["layers"].items()}


def _before(heads: Tensor, tokens: Tokens) -> Tensor:
    before = torch.cat([torch.zeros_like(heads[:, :, :1]), heads[:, :, :-1]], dim=2)
    if tokens.document is None:
        return before
    same = tokens.document[:, 1:] == tokens.document[:, :-1]  # [1|B, M - 1]
    return torch.cat([before[:, :, :1], before[:, :, 1:] * same[:, None, :, None]], dim=2)
