"""Data sources, one Lightning data module per file, and the facts of their samples."""

from zoo.data.spec import (
    DataSpec,
    ImageSpec,
    PointSpec,
    TextClassificationSpec,
    TextSpec,
    VideoSpec,
)

__all__ = ["DataSpec", "ImageSpec", "PointSpec", "TextClassificationSpec", "TextSpec", "VideoSpec"]
