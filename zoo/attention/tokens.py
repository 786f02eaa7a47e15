"""What is known of each token: its state, its place, its document, and what encodings noted about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

Data = TypeVar("Data")
Join = Callable[[str, Tensor, Tensor], Tensor]
"""(name of a fact, its rows [1|B, N, ...] of some tokens, those of later ones) -> the rows of all."""


@dataclass(frozen=True)
class Tokens:
    """N tokens of B samples. Everything but `x` may have batch size 1 (`1|B`): the same for every sample.

    `extent` None says that `index` holds coordinates already, to which no convention applies; `placed` None that every
    token has a place; `document` None that there is one document and no padding. `ordered` says that within a document
    coordinates grow from slot to slot, so that under a causal mask no key lies ahead of its query, `consecutive` that they
    grow by one each time, so that the offset of a pair is the difference of its slots. A note may cover the last n tokens
    alone, where an encoding needs no more of those before.
    """

    x: Tensor  # [B, N, D]
    index: Tensor  # [1|B, N, P] grid indices or token positions, at least float32
    grid_size: (
        Tensor | None
    )  # [1|B, 1|N, P] size of the grid, or of its own document, that a token is of
    pos: Tensor  # [1|B, N, P] coordinates: the index under the convention of the encoding that is asked
    has_position: Tensor | None = None  # bool [1|B, N]; False for class and register tokens
    document: Tensor | None = None  # int [1|B, N]; -1 for padding
    ordered: bool = False
    per_token: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # {name: [1|B, N or the last n, ...]} travels into caches
    shared_tables: Mapping[str, tuple[Tensor, ...]] = field(
        default_factory=dict
    )  # this pass and these tokens only
    consecutive: bool = False

    @classmethod
    def at(
        cls,
        x: Tensor,
        pos: Tensor,
        has_position: Tensor | None = None,
        document: Tensor | None = None,
        ordered: bool = False,
    ) -> Tokens:
        """Tokens with states [B, N, D] at given coordinates, [N, P] or [B, N, P]. Masks are [N] or [B, N].

        Coordinates are computed in the wider of their own dtype and that of x, and at least in float32.
        """
        pos = upcast(pos if pos.dim() == 3 else pos[None])
        pos = pos.to(torch.promote_types(pos.dtype, x.dtype))
        has_position, document = (
            m if m is None or m.dim() == 2 else m[None] for m in (has_position, document)
        )
        return cls(x, pos, None, pos, has_position, document, ordered)

    def __len__(self) -> int:
        return self.x.shape[1]

    def replace(self, **changes: object) -> Tokens:
        return replace_fields(self, changes)

    def with_per_token(self, **notes: Tensor) -> Tokens:
        """The same tokens with facts [1|B, N, ...] added that travel into caches."""
        return self.replace(per_token={**self.per_token, **notes})

    def last(self, count: int) -> Tokens:
        """The last `count` tokens."""
        if count == len(self):
            return self
        return self._map(lambda one: one[:, max(one.shape[1] - count, 0) :])

    def select(self, indices: Tensor) -> Tokens:
        """The tokens at these slots [n], each of which every note covers."""
        return self._map(lambda one: one[:, indices]).replace(consecutive=False)

    def join(
        self, later: Tokens, join: Join = lambda name, first, second: concat(first, second)
    ) -> Tokens:
        """These tokens followed by `later` ones, which must carry the same notes. `join` makes one fact out of two."""
        same = self.pos is self.index and later.pos is later.index
        index = join("index", self.index, later.index)

        def optional(
            name: str, first: Tensor | None, second: Tensor | None, default: int | bool
        ) -> Tensor | None:
            if first is None and second is None:
                return None
            first, second = (
                tokens.x.new_full(
                    (1, len(tokens)), default, dtype=torch.bool if default is True else torch.long
                )
                if one is None
                else one
                for tokens, one in ((self, first), (later, second))
            )
            return join(name, first, second)

        return Tokens(
            join("x", self.x, later.x),
            index,
            later.grid_size,
            index if same else join("pos", self.pos, later.pos),
            optional("has_position", self.has_position, later.has_position, True),
            optional("document", self.document, later.document, 0),
            self.ordered and later.ordered,
            {
                name: join(f"notes.{name}", note, later.per_token[name])
                for name, note in self.per_token.items()
            },
            consecutive=self.consecutive and later.consecutive,
        )

    def detach(self) -> Tokens:
        """The same tokens, with no gradient to what they came from."""
        return self._map(Tensor.detach)

    def drop_states(self) -> Tokens:
        """The same tokens without their states: what a cache of keys remembers of them."""
        return self.replace(x=self.x[..., :0])

    def _map(self, change) -> Tokens:  # type: ignore[no-untyped-def]
        """`change` applied to whatever has a token axis; tables, which belong to exactly these tokens, are left out."""
        index = change(self.index)
        return Tokens(
            change(self.x),
            index,
            self.grid_size
            if self.grid_size is None or self.grid_size.shape[1] == 1
            else change(self.grid_size),
            index if self.pos is self.index else change(self.pos),
            None if self.has_position is None else change(self.has_position),
            None if self.document is None else change(self.document),
            self.ordered,
            {name: change(note) for name, note in self.per_token.items()},
            consecutive=self.consecutive,
        )


def replace_fields(data: Data, changes: Mapping[str, object]) -> Data:
    """What `dataclasses.replace` gives of plain data, in a quarter of the time: a step makes fifty of these."""
    assert changes.keys() <= vars(data).keys(), f"no such field among {sorted(changes)}"
    made = object.__new__(type(data))
    vars(made).update(vars(data), **changes)
    return made


def concat(first: Tensor, second: Tensor, axis: int = 1) -> Tensor:
    """Rows [1|B, .., n, ..] followed by others."""
    if first.shape[0] != second.shape[0]:
        batch = max(first.shape[0], second.shape[0])
        first, second = (one.expand(batch, *one.shape[1:]) for one in (first, second))
    return torch.cat([first, second], dim=axis)


def upcast(tensor: Tensor) -> Tensor:
    """At least float32: what angles, exponentials and sums are computed in."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def disable_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context without autocast, for what must not be rounded to half precision."""
    kind = "cpu" if device.type == "meta" else device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def pick(values: Tensor, b: Tensor, n: Tensor) -> Tensor:
    """`values[b, n]` of a [1|B, N, ...] tensor for index tensors; a batch of 1 stays 1 and broadcasts."""
    return values[0][n] if values.shape[0] == 1 else values[b, n]
