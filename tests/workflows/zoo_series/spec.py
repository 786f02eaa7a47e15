"""The facts of series of vectors."""

from dataclasses import dataclass
from typing import ClassVar

from zoo.data.spec import DataSpec


@dataclass(frozen=True)
class SeriesSpec(DataSpec):
    """Series of vectors [B, length, channels] and the vector that follows each [B, channels]."""

    noun: ClassVar[str] = "series"
    fixed_fields: ClassVar[tuple[str, ...]] = ("channels",)

    channels: int
    length: int
    target_means: tuple[float, ...]
    target_stds: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.length, self.channels
