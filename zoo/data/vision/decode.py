"""Files of images as numbers of one size."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from zoo.registry import Count


@dataclass(frozen=True)
class Decoding:
    """What an image becomes: uint8 [channels, height, width], `sides` being its height and width.

    `crop` enlarges or shrinks an image until it just covers them, and keeps the centre; `exact` brings each side to its
    own length. Bicubic.
    """

    sides: tuple[int, int]
    channels: int
    resize: Literal["crop", "exact"]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, *self.sides

    @property
    def told(self) -> str:
        """How, in words."""
        return {
            "crop": "resized to cover the size, bicubically, and the centre kept",
            "exact": "each side resized to its own length, bicubically",
        }[self.resize]

    def __call__(self, content: bytes) -> NDArray[np.uint8]:
        """Raises ValueError where the content is no image, or a damaged one."""
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(BytesIO(content)) as file:
                picture = file.convert("RGB" if self.channels == 3 else "L")
            return np.asarray(self._fitted(picture)).reshape(*self.sides, -1).transpose(2, 0, 1)
        except UnidentifiedImageError:
            raise ValueError("no image of a known format") from None
        except Exception as error:  # each format has its own
            raise ValueError(str(error) or type(error).__name__) from None

    def _fitted(self, picture: Any) -> Any:
        from PIL.Image import Resampling

        (height, width), (across, down) = self.sides, picture.size
        factor = max(width / across, height / down)
        sides = (
            (round(across * factor), round(down * factor))
            if self.resize == "crop"
            else (width, height)
        )
        if sides != picture.size:
            picture = picture.resize(sides, Resampling.BICUBIC)
        left, top = (sides[0] - width) // 2, (sides[1] - height) // 2
        return picture.crop((left, top, left + width, top + height))


Size = Count | tuple[Count, Count]


def sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])
