"""What a layer remembers of tokens that came before, whatever the encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from zoo.attention.linear import LinearState
from zoo.attention.tokens import Tokens, concat
from zoo.errors import OptionError


@dataclass
class Buffer:
    """A tensor whose first `written` rows along an axis are somebody's; the others are free."""

    tensor: Tensor
    written: int


@dataclass(frozen=True)
class GrowingTensor:
    """Rows `begin` to `end` along one axis of a room.

    What has been written is never written again, so several of these may share a room: the one that ends where the room's
    rows do appends in place, any other moves to a room of its own. While gradients are recorded nothing is appended in
    place, since autograd may have kept what it would be beside.
    """

    buffer: Buffer
    axis: int
    begin: int
    end: int

    @classmethod
    def of(cls, rows: Tensor, axis: int) -> GrowingTensor:
        """Rows as they are, without room for more."""
        count = rows.shape[axis]
        return cls(Buffer(rows, count), axis, 0, count)

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def rows(self) -> Tensor:
        return self.buffer.tensor.narrow(self.axis, self.begin, len(self))

    def last(self, count: int) -> GrowingTensor:
        """The last `count` rows, or all if there are fewer."""
        return GrowingTensor(self.buffer, self.axis, max(self.end - count, self.begin), self.end)

    def append(self, rows: Tensor) -> GrowingTensor:
        """These rows followed by others, in the wider of their dtypes and batches (1|B)."""
        if torch.is_grad_enabled():
            return GrowingTensor.of(concat(self.rows, rows, self.axis), self.axis)
        if not self._takes(rows):
            return self._moved(rows).append(rows)
        count = rows.shape[self.axis]
        self.buffer.written += (
            count  # said before it is so: another thread may have forked from here too
        )
        self.buffer.tensor.narrow(self.axis, self.end, count).copy_(rows)
        return GrowingTensor(self.buffer, self.axis, self.begin, self.end + count)

    def _takes(self, rows: Tensor) -> bool:
        """Whether the room is ours to write to, and wide enough."""
        tensor = self.buffer.tensor
        free = (
            self.buffer.written == self.end
            and self.end + rows.shape[self.axis] <= tensor.shape[self.axis]
        )
        wide = tensor.shape[0] >= rows.shape[0] and _wider(tensor, rows) == tensor.dtype
        return free and wide and (torch.is_inference_mode_enabled() or not tensor.is_inference())

    def _moved(self, rows: Tensor) -> GrowingTensor:
        """The same rows at the beginning of a room for twice as many as there are with those to come."""
        old = self.rows
        shape = list(old.shape)
        shape[0], shape[self.axis] = (
            max(len(old), len(rows)),
            2 * (len(self) + rows.shape[self.axis]),
        )
        tensor = old.new_empty(shape, dtype=_wider(old, rows))
        tensor.narrow(self.axis, 0, len(self)).copy_(old)
        return GrowingTensor(Buffer(tensor, len(self)), self.axis, 0, len(self))


def _wider(one: Tensor, other: Tensor) -> torch.dtype:
    return one.dtype if one.dtype == other.dtype else torch.promote_types(one.dtype, other.dtype)


UpdateKeys = Callable[[Tensor, Tokens], tuple[Tensor, Tokens]]
"""Keys [B, G, M, K] and their tokens, as they are to be remembered."""


def _as_they_are(k: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
    return k, tokens


class Context:
    """Remember nothing: each pass sees its own tokens. `seen` counts tokens of earlier passes."""

    seen = 0

    def extend_states(self, layer: int, tokens: Tokens) -> Tokens:
        """The tokens that keys and values are projected from."""
        return tokens

    def previous_heads(self, layer: int, heads: Tensor, tokens: Tokens) -> Tensor:
        """Heads [B, G, M, ..] of the token before each, 0 where there is none in its document."""
        return _before(heads, tokens)

    def extend(
        self,
        layer: int,
        k: Tensor,
        v: Tensor,
        tokens: Tokens,
        update_keys: UpdateKeys = _as_they_are,
        window: int | None = None,
    ) -> tuple[Tensor, Tensor, Tokens]:
        """All keys and values [B, G, M, ..] to attend to, given this pass's own, and their tokens.

        What stands before the window of any later query need not be remembered; what is, is remembered as settled.
        """
        return k, v, tokens

    def linear_state(self, layer: int) -> LinearState | None:
        """What the keys of earlier passes came to, in linear attention."""
        return None

    def store_linear_state(self, layer: int, state: LinearState, tokens: Tokens) -> None:
        """Take in what the keys came to with those of this pass's tokens, in linear attention."""

    def copy(self) -> Context:
        """A context that goes on from what this one remembers, and leaves this one as it is."""
        made = copy(self)
        vars(made).update(
            (name, dict(kept)) for name, kept in vars(self).items() if isinstance(kept, dict)
        )
        return made

    def restore(self, other: Context) -> None:
        """Remember what a copy of this context remembers."""
        vars(self).update(vars(other))


@dataclass(frozen=True)
class LayerCache:
    """Keys, values and their tokens, to which more can be appended in place."""

    k: GrowingTensor  # [B, G, M, K]
    v: GrowingTensor  # [B, G, M, V]
    tokens: Tokens
    facts: Mapping[str, GrowingTensor] = field(default_factory=dict)  # of the tokens, what has room

    @classmethod
    def of(cls, k: Tensor, v: Tensor, tokens: Tokens) -> LayerCache:
        return cls(GrowingTensor.of(k, 2), GrowingTensor.of(v, 2), tokens)

    def followed(self, k: Tensor, v: Tensor, tokens: Tokens) -> LayerCache:
        """The same and those of later tokens."""
        facts: dict[str, GrowingTensor] = {}

        def join(name: str, first: Tensor, second: Tensor) -> Tensor:
            if not first.numel():
                return concat(first, second)
            facts[name] = self.facts.get(name, GrowingTensor.of(first, 1)).append(second)
            return facts[name].rows

        return LayerCache(self.k.append(k), self.v.append(v), self.tokens.join(tokens, join), facts)

    def settled(self, k: Tensor, tokens: Tokens) -> LayerCache:
        """The same with keys and tokens as an encoding leaves them."""
        return replace(self, k=GrowingTensor.of(k, 2), tokens=tokens, facts={})

    def last(self, count: int) -> LayerCache:
        """What is of the last `count` tokens."""
        if count == len(self.tokens):
            return self
        facts = {name: fact.last(count) for name, fact in self.facts.items()}
        return LayerCache(self.k.last(count), self.v.last(count), self.tokens.last(count), facts)


class KeyValueCache(Context):
    """Remember keys and values of earlier tokens, for decoding: pass it as `context` to each call.

    A cached key is final, unless an encoding updates cached keys; those are kept in at least float32.
    Without gradients, a step appends in place. For linear attention, the cache holds sums over keys.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._states: dict[int, LinearState] = {}
        self._layers: dict[int, LayerCache] = {}
        self._last: dict[int, tuple[Tensor, Tokens]] = {}

    def previous_heads(self, layer: int, heads: Tensor, tokens: Tokens) -> Tensor:
        count, tokens = heads.shape[2], tokens.drop_states()
        last = heads[:, :, -1:], tokens.last(1)
        if layer in self._last:
            old_heads, old_tokens = self._last[layer]
            heads, tokens = torch.cat([old_heads, heads], dim=2), old_tokens.join(tokens)
        self._last[layer] = last
        return _before(heads, tokens)[:, :, -count:]

    def extend(
        self,
        layer: int,
        k: Tensor,
        v: Tensor,
        tokens: Tokens,
        update_keys: UpdateKeys = _as_they_are,
        window: int | None = None,
    ) -> tuple[Tensor, Tensor, Tokens]:
        seen, tokens, dtype = self._counts.get(layer, 0), tokens.drop_states(), k.dtype
        self._count(layer, tokens)
        if layer in self._layers:
            before = self._layers[layer]
            if (
                len(before.tokens) < seen
                and tokens.has_position is not None
                and not tokens.has_position.all()
            ):
                raise OptionError(
                    "has_position",
                    "a token without a place sees all, and what left the window is forgotten",
                )
            kept = before.followed(k, v, tokens)
        else:
            kept = LayerCache.of(k, v, tokens)
        k, tokens = kept.k.rows, kept.tokens
        settled, told = update_keys(k, tokens)
        changed = settled is not k or told is not tokens
        self._layers[layer] = (kept.settled(settled, told) if changed else kept).last(
            _in_sight(tokens, window)
        )
        return k.to(dtype), kept.v.rows, tokens

    def linear_state(self, layer: int) -> LinearState | None:
        return self._states.get(layer)

    def store_linear_state(self, layer: int, state: LinearState, tokens: Tokens) -> None:
        self._count(layer, tokens)
        self._states[layer] = state

    def _count(self, layer: int, tokens: Tokens) -> None:
        self._counts[layer] = self.seen = self._counts.get(layer, 0) + len(tokens)


class SegmentMemory(Context):
    """Remember the inputs of each layer for the last tokens (Transformer-XL, arXiv:1901.02860).

    Gradients do not flow into the memory.

    Args:
        length: Number of tokens to remember.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._layers: dict[int, Tokens] = {}

    def extend_states(self, layer: int, tokens: Tokens) -> Tokens:
        joined = self._layers[layer].join(tokens) if layer in self._layers else tokens
        if self.length:
            self._layers[layer] = joined.last(min(self.length, len(joined))).detach()
        if layer == 0:
            self.seen += len(tokens)
        return joined

    def state_dict(self) -> dict[str, Any]:
        """Return the memory as plain data."""
        layers = {
            layer: {**vars(tokens), "shared_tables": {}} for layer, tokens in self._layers.items()
        }
        return {"seen": self.seen, "layers": layers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the memory that `state_dict` returned."""
        self.seen = state["seen"]
        self._layers = {layer: Tokens(**fields) for layer, fields in state["layers"].items()}


def _in_sight(tokens: Tokens, window: int | None) -> int:
    """How many of the last tokens a later query can see: all where tokens without a place may follow, which see all."""
    return (
        len(tokens)
        if window is None or tokens.has_position is not None
        else min(window - 1, len(tokens))
    )


def _before(heads: Tensor, tokens: Tokens) -> Tensor:
    before = torch.cat([torch.zeros_like(heads[:, :, :1]), heads[:, :, :-1]], dim=2)
    if tokens.document is None:
        return before
    same = tokens.document[:, 1:] == tokens.document[:, :-1]  # [1|B, M - 1]
    return torch.cat([before[:, :, :1], before[:, :, 1:] * same[:, None, :, None]], dim=2)
