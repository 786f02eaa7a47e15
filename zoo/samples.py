"""What a data source yields: the facts that a model and a task are built for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Images:
    """Images [B, channels, height, width] with one label each."""

    channels: int
    height: int
    width: int
    classes: int
