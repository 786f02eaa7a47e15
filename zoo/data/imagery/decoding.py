"""Files of images as numbers of one size."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Decoding:
    """What an image becomes: uint8 [channels, size, size].

    `crop` brings the shorter side to `size` and keeps the centre; `exact` brings both sides to it. Bicubic.
    """

    size: int
    channels: int
    resize: Literal["crop", "exact"]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.size, self.size

    def __call__(self, content: bytes) -> NDArray[np.uint8]:
        """Raises ValueError where the content is no image, or a damaged one."""
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(BytesIO(content)) as file:
                picture = file.convert("RGB" if self.channels == 3 else "L")
            return np.asarray(self._fitted(picture)).reshape(self.size, self.size, -1).transpose(2, 0, 1)
        except UnidentifiedImageError:
            raise ValueError("no image of a known format") from None
        except Exception as error:  # each format has its own
            raise ValueError(str(error) or type(error).__name__) from None

    def _fitted(self, picture: Any) -> Any:
        from PIL.Image import Resampling

        width, height = picture.size
        factor = self.size / min(width, height)
        sides = (round(width * factor), round(height * factor)) if self.resize == "crop" else (self.size, self.size)
        if sides != picture.size:
            picture = picture.resize(sides, Resampling.BICUBIC)
        left, top = (sides[0] - self.size) // 2, (sides[1] - self.size) // 2
        return picture.crop((left, top, left + self.size, top + self.size))
