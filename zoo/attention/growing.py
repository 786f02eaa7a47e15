"""Tensors that grow at their end without being made anew: the room for more rows doubles whenever it is full."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.attention.tokens import joined


@dataclass
class Room:
    """A tensor whose first `written` rows along an axis are somebody's; the others are free."""

    tensor: Tensor
    written: int


@dataclass(frozen=True)
class Growing:
    """Rows `begin` to `end` along one axis of a room.

    What has been written is never written again, so several of these may share a room: the one that ends where the room's
    rows do appends in place, any other moves to a room of its own. While gradients are recorded nothing is appended in
    place, since autograd may have kept what it would be beside.
    """

    room: Room
    axis: int
    begin: int
    end: int

    @classmethod
    def of(cls, rows: Tensor, axis: int) -> Growing:
        """Rows as they are, without room for more."""
        count = rows.shape[axis]
        return cls(Room(rows, count), axis, 0, count)

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def rows(self) -> Tensor:
        return self.room.tensor.narrow(self.axis, self.begin, len(self))

    def last(self, count: int) -> Growing:
        """The last `count` rows, or all if there are fewer."""
        return Growing(self.room, self.axis, max(self.end - count, self.begin), self.end)

    def append(self, rows: Tensor) -> Growing:
        """These rows followed by others, in the wider of their dtypes and batches (1|B)."""
        if torch.is_grad_enabled():
            return Growing.of(joined(self.rows, rows, self.axis), self.axis)
        if not self._takes(rows):
            return self._moved(rows).append(rows)
        count = rows.shape[self.axis]
        self.room.written += count  # said before it is so: another thread may have forked from here too
        self.room.tensor.narrow(self.axis, self.end, count).copy_(rows)
        return Growing(self.room, self.axis, self.begin, self.end + count)

    def _takes(self, rows: Tensor) -> bool:
        """Whether the room is ours to write to, and wide enough."""
        tensor = self.room.tensor
        free = self.room.written == self.end and self.end + rows.shape[self.axis] <= tensor.shape[self.axis]
        wide = tensor.shape[0] >= rows.shape[0] and _wider(tensor, rows) == tensor.dtype
        return free and wide and (torch.is_inference_mode_enabled() or not tensor.is_inference())

    def _moved(self, rows: Tensor) -> Growing:
        """The same rows at the beginning of a room for twice as many as there are with those to come."""
        old = self.rows
        shape = list(old.shape)
        shape[0], shape[self.axis] = max(len(old), len(rows)), 2 * (len(self) + rows.shape[self.axis])
        tensor = old.new_empty(shape, dtype=_wider(old, rows))
        tensor.narrow(self.axis, 0, len(self)).copy_(old)
        return Growing(Room(tensor, len(self)), self.axis, 0, len(self))


def _wider(one: Tensor, other: Tensor) -> torch.dtype:
    return one.dtype if one.dtype == other.dtype else torch.promote_types(one.dtype, other.dtype)
