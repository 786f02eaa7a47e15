"""Segment memory that is carried from batch to batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device

from zoo.attention.context import SegmentMemory


class Memory:
    """What a loop remembers of the windows before, each row its own; `length` 0 remembers nothing."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.forget()

    def forget(self) -> None:
        self._rows = 0
        self._context = SegmentMemory(self.length)
        self._loaded: Mapping[str, Any] | None = None

    def context(self, rows: int, device: torch.device) -> SegmentMemory | None:
        """The context of a batch of so many rows: a new one if the batch before had another number of them."""
        if not self.length:
            return None
        if rows != self._rows:
            self.forget()
            self._rows = rows
        if self._loaded is not None:  # only now it is known where to
            self._context.load_state_dict(move_data_to_device(self._loaded, device))
            self._loaded = None
        return self._context

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, as plain data."""
        return {"rows": self._rows, "context": self._loaded or self._context.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.forget()
        self._rows, self._loaded = state["rows"], state["context"]
