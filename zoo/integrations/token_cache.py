"""What encodings remember of cached tokens, beside the keys and values of a transformers cache.

The tokens live in the layers of the cache itself, so that whatever reorders, repeats, selects or
crops the cache does the same to them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, StaticLayer, StaticSlidingWindowLayer

from zoo.attention.tokens import Tokens, select_rows
from zoo.errors import OptionError
from zoo.integrations.equipment import Layer


@cache
def add_token_memory(kind: type[Any]) -> type[Any]:
    """Derive from the class of a layer of a cache one that remembers the tokens of its keys."""

    class EquippedLayer(kind):  # type: ignore[misc]
        zoo_tokens: Tokens | None

        def reorder_cache(self, beam_idx: Tensor) -> None:
            super().reorder_cache(beam_idx)
            self.change_tokens(lambda values: select_rows(values, beam_idx))

        def batch_select_indices(self, indices: Tensor) -> None:
            super().batch_select_indices(indices)
            self.change_tokens(lambda values: select_rows(values, indices))

        def batch_repeat_interleave(self, repeats: int) -> None:
            super().batch_repeat_interleave(repeats)
            self.change_tokens(lambda values: _repeat(values, repeats))

        def crop(self, tokens_to_remove: int) -> None:
            super().crop(tokens_to_remove)
            if count := abs(tokens_to_remove):
                self.change_tokens(lambda values: values[:, :-count])

        def reset(self) -> None:
            super().reset()
            self.zoo_tokens = None

        def change_tokens(self, change: Callable[[Tensor], Tensor]) -> None:
            if self.zoo_tokens is not None:
                self.zoo_tokens = self.zoo_tokens.map_values(change)

    EquippedLayer.__name__ = f"Equipped{kind.__name__}"
    return EquippedLayer


def _repeat(values: Tensor, repeats: int) -> Tensor:
    """Repeat each sample of [1|B, ..]; a batch of 1 stands for all."""
    return values if len(values) == 1 else values.repeat_interleave(repeats, dim=0)


class CacheView:
    """A cache as one attention of an equipped model sees it: keys are transformed before storage.

    Args:
        cache: The cache of transformers.
        layer: The attention, whose `keys` are set by `update`.
    """

    def __init__(self, cache: Any, layer: Layer) -> None:
        self._cache, self._layer = cache, layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values [B, G, N, ..] of new tokens, and return those of all tokens."""
        layer = self._layer
        seen = self._cache.get_seq_length(layer_idx)
        k = layer.transform_key(key_states)
        k, v = self._cache.update(k, value_states, layer_idx, *args, **kwargs)
        store = self._cache.layers[layer_idx]

        tokens = _remember(store, layer.tokens.drop_states(), seen)
        if isinstance(store, StaticLayer):
            k, v = k[:, :, : len(tokens)], v[:, :, : len(tokens)]
        layer.keys = store.zoo_tokens = tokens = tokens.last(k.shape[2])
        if layer.chain.key_updaters:
            self._update_keys(store, k, tokens)
        if store.is_sliding:
            store.zoo_tokens = tokens.last(store.keys.shape[2])
        return k.to(key_states.dtype), v

    def _update_keys(self, store: Any, k: Tensor, tokens: Tokens) -> None:
        """Change the keys that the cache keeps for later tokens, by what these tokens say."""
        if store.is_sliding:
            names = ", ".join(self._layer.chain.key_updaters)
            problem = f"{names} changes cached keys, which a sliding window would have forgotten"
            raise OptionError("encoding", problem)
        k, store.zoo_tokens = self._layer.chain.update_cached_keys(k, tokens)
        if isinstance(store, StaticLayer):
            store.keys[:, :, : k.shape[2]] = k
        else:
            store.keys = k


def _remember(store: Any, tokens: Tokens, seen: int | Tensor) -> Tokens:
    """Join new tokens to those of a layer of a cache; return all of them."""
    if isinstance(store, StaticSlidingWindowLayer) or not isinstance(
        store, DynamicLayer | StaticLayer
    ):
        problem = f"an equipped model cannot use a cache of {type(store).__name__}"
        raise OptionError("cache", f"{problem}; use the dynamic or the static cache")
    if "zoo_tokens" not in vars(store):
        if int(seen):
            problem = "this cache was filled by a model with other positions"
            raise OptionError("cache", f"{problem}; start from an empty cache")
        kind: Any = type(store)
        store.__class__ = add_token_memory(kind)
        store.zoo_tokens = None
    if store.zoo_tokens is None or not int(seen):
        return tokens
    if torch.is_grad_enabled():
        return store.zoo_tokens.join(tokens)
    return store.zoo_tokens.join(tokens.detach())
