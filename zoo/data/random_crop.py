"""Random resized crops of image files, as training on ImageNet draws them (Szegedy et al. 2015).

The crop is a box of the original picture, not of a smaller centre crop, so that a model sees every
part of it in as many pixels as the file has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

ATTEMPTS = 10
"""Number of boxes that are drawn before the largest central one is taken."""
RATIOS = (3 / 4, 4 / 3)
"""Smallest and largest ratio of the width of a crop to its height (arXiv:1409.4842, section 6)."""
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class RandomCrop:
    """A random resized crop and a horizontal flip, drawn for each sample of each epoch."""

    seed: int
    area: float
    """Smallest fraction of the area of the original picture; the largest is 1."""
    flip: float
    """Probability of a horizontal flip."""

    def draw(self, epoch: int, number: int) -> DrawnCrop:
        """Return the crop of a sample, which depends on nothing but (seed, epoch, number)."""
        return DrawnCrop(self.area, self.flip, np.random.default_rng([self.seed, epoch, number]))


@dataclass
class DrawnCrop:
    """The crop of one sample, in a picture whose size is not known yet."""

    area: float
    flip: float
    rng: np.random.Generator

    def draw_flip(self) -> bool:
        """Draw whether a whole picture is flipped."""
        return bool(self.rng.random() < self.flip)

    def draw_box(self, width: int, height: int) -> tuple[Box, bool]:
        """Draw a box of a picture.

        Args:
            width: Width of the upright picture in pixels.
            height: Height in pixels.

        Returns:
            (left, top, right, bottom) in whole pixels, and whether the crop is flipped.
        """
        is_flipped = self.draw_flip()
        for _ in range(ATTEMPTS):
            fraction, log_ratio, x, y = self.rng.random(4).tolist()
            area = (self.area + fraction * (1 - self.area)) * width * height
            low, high = map(math.log, RATIOS)
            ratio = math.exp(low + log_ratio * (high - low))
            across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < across <= width and 0 < down <= height:
                left, top = int(x * (width - across + 1)), int(y * (height - down + 1))
                return (left, top, left + across, top + down), is_flipped
        # a picture so narrow that hardly any box fits: the largest central one
        across = min(width, max(round(height * RATIOS[1]), 1))
        down = min(height, max(round(width / RATIOS[0]), 1))
        left, top = (width - across) // 2, (height - down) // 2
        return (left, top, left + across, top + down), is_flipped


def resize_crop(
    image: Any, box: Box, is_flipped: bool, sides: tuple[int, int], resampling: Any = None
) -> Any:
    """Return a box of a picture, resized and flipped.

    Args:
        image: A picture of Pillow.
        box: (left, top, right, bottom) in its pixels.
        is_flipped: Whether left and right are exchanged.
        sides: Height and width of the result.
        resampling: The filter of Pillow. None: bicubic.
    """
    from PIL.Image import Resampling, Transpose

    resampling = Resampling.BICUBIC if resampling is None else resampling
    resized = image.resize((sides[1], sides[0]), resampling, box)
    return resized.transpose(Transpose.FLIP_LEFT_RIGHT) if is_flipped else resized
