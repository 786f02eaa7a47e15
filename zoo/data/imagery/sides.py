"""The size of images: one number for a square, or [height, width]."""

from __future__ import annotations

from zoo.registry import Count

Size = Count | tuple[Count, Count]


def sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])
