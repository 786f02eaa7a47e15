"""Memories of attention layers between calls: a KV cache, and the states of a segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.attention.layer import Context, UpdateKeys, keep_keys, shift_heads, take_heads
from zoo.attention.layer_state import LayerState
from zoo.attention.tokens import (
    Tokens,
    check_count,
    check_row_numbers,
    check_rows,
    concat,
    find_last_before,
    order_padding_first,
    select_rows,
)
from zoo.errors import OptionError


class CacheSize(NamedTuple):
    """Number of tokens that a layer keeps between calls, and the bytes of their data."""

    tokens: int
    bytes: int


class KeyValueCache(Context):
    """A KV cache for decoding: pass the same one as `context` to each call of a model.

    A cached key is final unless an encoding updates cached keys, which are kept in at least
    float32. Without gradients a call appends in place. With a sliding window only the tokens that
    later ones attend to are kept. Linear attention and mixers keep a state instead.

    >>> cache = KeyValueCache()
    >>> logits = model(prompt, context=cache)
    >>> logits = model(next_token, context=cache)
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._states: dict[int, LayerState] = {}
        self._layers: dict[int, LayerCache] = {}
        self._last: dict[int, tuple[Tensor, Tokens]] = {}

    def previous_heads(self, layer: int, heads: Tensor, tokens: Tokens) -> Tensor:
        """Return the heads [B, G, M, ..] of each previous token, 0 at the start of a document."""
        count, tokens = heads.shape[2], tokens.drop_states()
        if layer in self._last:
            old_heads, old_tokens = self._last[layer]
            check_rows(old_heads, heads)
            heads, tokens = torch.cat([old_heads, heads], dim=2), old_tokens.join(tokens)
        last_heads, last_tokens = heads, tokens.last(1)
        # The last token of each sample that is no padding.
        if tokens.document is not None:
            order = order_padding_first(tokens.document)[:, -1:]
            last_heads = take_heads(heads, order)
            last_tokens = last_tokens.replace(document=tokens.document.gather(1, order))
        self._last[layer] = last_heads[:, :, -1:], last_tokens
        return shift_heads(heads, tokens)[:, :, -count:]

    def extend(
        self,
        layer: int,
        k: Tensor,
        v: Tensor,
        tokens: Tokens,
        update_keys: UpdateKeys = keep_keys,
        window: int | None = None,
        lookback: int = 0,
    ) -> tuple[Tensor, Tensor, Tokens]:
        """Append keys and values of this call, and return all of them.

        Raises:
            OptionError: A token without a position would attend to tokens that left the window.
        """
        dtype, tokens, seen = k.dtype, tokens.drop_states(), self._counts.get(layer, 0)
        self._count(layer, tokens)

        if layer in self._layers:
            cached = self._layers[layer]
            check_rows(cached.k.rows, k)
            if len(cached.tokens) < seen and _has_special(tokens):
                message = "a token without a position attends to all tokens, but those before the "
                raise OptionError("has_position", message + "window are forgotten")
            cached = cached.append(k, v, tokens)
        else:
            cached = LayerCache.of(k, v, tokens)

        # This call attends to the keys before their update; the next one sees the updated keys.
        k, tokens = cached.k.rows, cached.tokens
        kept_k, kept_tokens = update_keys(k, tokens)
        updated = cached
        if kept_k is not k or kept_tokens is not tokens:
            updated = cached.replace_keys(kept_k, kept_tokens)
        self._layers[layer] = updated.last(_count_visible(tokens, window), lookback)
        return k.to(dtype), cached.v.rows, tokens

    def reorder(self, rows: Tensor) -> None:
        """Reassign the rows of the batch, as beam search requires.

        Args:
            rows: For each row of the next call, the row whose past it continues, int [b].

        Raises:
            OptionError: They are no numbers of rows of this cache.
        """
        tensors = [cache.k.rows for cache in self._layers.values()]
        for state in self._states.values():
            tensors += state.values.values()
        for tensor in tensors:
            check_row_numbers(rows, tensor)
        self._layers = {layer: cache.select_rows(rows) for layer, cache in self._layers.items()}
        self._states = {layer: state.select_rows(rows) for layer, state in self._states.items()}
        self._last = {
            layer: (select_rows(heads, rows), tokens.select_rows(rows))
            for layer, (heads, tokens) in self._last.items()
        }

    def measure(self) -> dict[int, CacheSize]:
        """Return for each layer what it keeps: keys, values, and values per token of encodings.

        Positions and the free space of buffers are not counted. The states of linear attention and
        of mixers are of no token.
        """
        sizes = {}
        for layer in sorted({**self._layers, **self._states}):
            tensors: list[Tensor] = []
            tokens = 0
            # Rows in use: a buffer may hold earlier tokens and free space.
            if cache := self._layers.get(layer):
                tensors += [cache.k.rows, cache.v.rows, *cache.tokens.per_token.values()]
                tokens = len(cache.tokens)
            if state := self._states.get(layer):
                tensors += state.values.values()
            # Token shift reads the heads of the last token, also where a window has hidden it.
            if layer in self._last:
                tensors.append(self._last[layer][0])
            sizes[layer] = CacheSize(
                tokens, sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            )
        return sizes

    def state(self, layer: int) -> LayerState | None:
        """Return the state of a layer without keys after earlier calls."""
        return self._states.get(layer)

    def store_state(self, layer: int, state: LayerState, tokens: Tokens) -> None:
        """Remember the state of a layer after the tokens of this call."""
        self._count(layer, tokens)
        self._states[layer] = state

    def _count(self, layer: int, tokens: Tokens) -> None:
        self._counts[layer] = self.seen = self._counts.get(layer, 0) + len(tokens)


class SegmentMemory(Context):
    """A memory of the inputs of each layer for the last tokens (Transformer-XL, arXiv:1901.02860).

    Gradients do not flow into the memory.

    Args:
        length: Number of tokens to remember.
    """

    def __init__(self, length: int) -> None:
        check_count("length", length, least=0)
        self.length = length
        self._layers: dict[int, Tokens] = {}

    def extend_states(self, layer: int, tokens: Tokens) -> Tokens:
        """Return the remembered tokens followed by those of this call."""
        if layer in self._layers:
            check_rows(self._layers[layer].x, tokens.x)
        result = self._layers[layer].join(tokens) if layer in self._layers else tokens
        if self.length:
            self._layers[layer] = result.last(min(self.length, len(result))).detach()
        # Every layer of a call sees the same tokens: count them once.
        if layer == 0:
            self.seen += len(tokens)
        return result

    def reorder(self, rows: Tensor) -> None:
        """Reassign the rows of the batch, as `KeyValueCache.reorder` does."""
        for tokens in self._layers.values():
            check_row_numbers(rows, tokens.x)
        self._layers = {layer: tokens.select_rows(rows) for layer, tokens in self._layers.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the content as plain data, without the tables, which are computed again."""
        layers = {
            layer: {**vars(tokens), "shared_tables": {}} for layer, tokens in self._layers.items()
        }
        return {"seen": self.seen, "layers": layers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the content that `state_dict` returned."""
        self.seen = state["seen"]
        self._layers = {layer: Tokens(**fields) for layer, fields in state["layers"].items()}


@dataclass(frozen=True)
class LayerCache:
    """Keys, values and tokens of one layer, to which more can be appended in place."""

    k: GrowingTensor  # [B, G, M, K]
    v: GrowingTensor  # [B, G, M, V]
    tokens: Tokens
    fields: Mapping[str, GrowingTensor] = field(default_factory=dict)  # rows of the tokens' fields

    @classmethod
    def of(cls, k: Tensor, v: Tensor, tokens: Tokens) -> LayerCache:
        """Create the cache of a first call."""
        return cls(GrowingTensor.of(k, 2), GrowingTensor.of(v, 2), tokens)

    def append(self, k: Tensor, v: Tensor, tokens: Tokens) -> LayerCache:
        """Append later keys, values and tokens."""
        fields: dict[str, GrowingTensor] = {}

        def join(name: str, earlier: Tensor, later: Tensor) -> Tensor:
            # States of width 0 need no buffer.
            if not earlier.numel():
                return concat(earlier, later)
            fields[name] = self.fields.get(name, GrowingTensor.of(earlier, 1)).append(later)
            return fields[name].rows

        return LayerCache(
            self.k.append(k), self.v.append(v), self.tokens.join(tokens, join), fields
        )

    def replace_keys(self, k: Tensor, tokens: Tokens) -> LayerCache:
        """Replace the keys and tokens, and keep the values."""
        return replace(self, k=GrowingTensor.of(k, 2), tokens=tokens, fields={})

    def select_rows(self, rows: Tensor) -> LayerCache:
        """Return a copy of the cache for other rows of the batch, int [b]."""
        k, v = (GrowingTensor.of(select_rows(x.rows, rows), 2) for x in (self.k, self.v))
        return LayerCache(k, v, self.tokens.select_rows(rows))

    def last(self, count: int, lookback: int = 0) -> LayerCache:
        """Return the cache of the last `count` tokens, with data of `lookback` tokens before."""
        tokens = self.tokens.last(count, lookback)
        if tokens is self.tokens:
            return self
        if lookback and self.tokens.document is not None:
            # Tokens before the last ones may have moved, and their keys and values with them.
            before = find_last_before(self.tokens.document, count, lookback)
            moved_k = _move_heads(self.k.rows, before, count)
            moved_v = _move_heads(self.v.rows, before, count)
            return LayerCache(GrowingTensor.of(moved_k, 2), GrowingTensor.of(moved_v, 2), tokens)
        k, v = self.k.last(len(tokens)), self.v.last(len(tokens))
        fields = {name: rows.last(len(tokens)) for name, rows in self.fields.items()}
        return LayerCache(k, v, tokens, fields)


def _move_heads(heads: Tensor, before: Tensor, count: int) -> Tensor:
    """Return the last `count` tokens of heads [B, G, M, ..], after others, int [1|B, n]."""
    earlier, moved = heads.split([heads.shape[2] - count, count], dim=2)
    return concat(take_heads(earlier, before), moved, axis=2)


@dataclass
class Buffer:
    """A tensor whose first `written` rows along an axis are in use and whose others are free."""

    tensor: Tensor
    written: int


@dataclass(frozen=True)
class GrowingTensor:
    """Rows `begin` to `end` along one axis of a buffer.

    Written rows are never overwritten, so several instances may share a buffer: the one that ends
    at the last written row appends in place, any other moves to a buffer of its own. While
    gradients are recorded nothing is appended in place, because autograd may have saved the tensor.

        buffer   [x x x x x x . . . .]     written = 6
        rows         [x x x x]             begin = 2, end = 6: may append in place
        fork     [x x x x]                 begin = 0, end = 4: must move first
    """

    buffer: Buffer
    axis: int
    begin: int
    end: int

    @classmethod
    def of(cls, rows: Tensor, axis: int) -> GrowingTensor:
        """Wrap rows without free space."""
        count = rows.shape[axis]
        return cls(Buffer(rows, count), axis, 0, count)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.end - self.begin

    @property
    def rows(self) -> Tensor:
        """The rows as a view of the buffer."""
        return self.buffer.tensor.narrow(self.axis, self.begin, len(self))

    def last(self, count: int) -> GrowingTensor:
        """Return the last `count` rows, or all if there are fewer."""
        return GrowingTensor(self.buffer, self.axis, max(self.end - count, self.begin), self.end)

    def append(self, rows: Tensor) -> GrowingTensor:
        """Append rows; dtype and batch (1|B) become the wider of both."""
        if torch.is_grad_enabled():
            return GrowingTensor.of(concat(self.rows, rows, self.axis), self.axis)
        if not self._can_append(rows):
            return self._reallocate(rows).append(rows)
        count = rows.shape[self.axis]
        # The rows are claimed before they are written: another thread may append from here too.
        self.buffer.written += count
        self.buffer.tensor.narrow(self.axis, self.end, count).copy_(rows)
        return GrowingTensor(self.buffer, self.axis, self.begin, self.end + count)

    def _can_append(self, rows: Tensor) -> bool:
        """Return whether the next rows are free and the buffer has the dtype and batch of rows."""
        tensor, end = self.buffer.tensor, self.end + rows.shape[self.axis]
        is_free = self.buffer.written == self.end and end <= tensor.shape[self.axis]
        is_wide = len(tensor) >= len(rows) and _promote(tensor, rows) == tensor.dtype
        # Tensors made in inference mode cannot be written outside it.
        is_writable = torch.is_inference_mode_enabled() or not tensor.is_inference()
        return is_free and is_wide and is_writable

    def _reallocate(self, rows: Tensor) -> GrowingTensor:
        """Move to a new buffer of twice the required length."""
        # Doubling makes the cost of an append constant on average.
        old = self.rows
        shape = list(old.shape)
        shape[0] = max(len(old), len(rows))
        shape[self.axis] = 2 * (len(self) + rows.shape[self.axis])
        tensor = old.new_empty(shape, dtype=_promote(old, rows))
        tensor.narrow(self.axis, 0, len(self)).copy_(old)
        return GrowingTensor(Buffer(tensor, len(self)), self.axis, 0, len(self))


def _promote(old: Tensor, new: Tensor) -> torch.dtype:
    return old.dtype if old.dtype == new.dtype else torch.promote_types(old.dtype, new.dtype)


def _has_special(tokens: Tokens) -> bool:
    return tokens.has_position is not None and not bool(tokens.has_position.all())


def _count_visible(tokens: Tokens, window: int | None) -> int:
    """Count the last tokens that a later query can attend to.

    If tokens without a position may follow, all are counted, because such tokens attend to all.
    """
    if window is None or tokens.has_position is not None:
        return len(tokens)
    return min(window - 1, len(tokens))
