"""Resize images, and logits of pixels, bilinearly with antialiasing."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def resize_maps(maps: Tensor, sides: tuple[int, int]) -> Tensor:
    """Resize images, or logits of pixels, bilinearly with antialiasing.

    Each side is resized to its own length, so the aspect ratio may change.

    Args:
        maps: Maps [..., H, W].
        sides: The new height and width.

    Returns:
        Maps [..., height, width] of the same dtype.
    """
    if tuple(maps.shape[-2:]) == sides:
        return maps
    flat = maps.flatten(0, -4) if maps.dim() > 4 else maps
    # at least float32, since there is no kernel for half precision on all devices
    wide = flat.to(torch.promote_types(maps.dtype, torch.float32))
    resized = F.interpolate(wide, sides, mode="bilinear", align_corners=False, antialias=True)
    return resized.to(maps.dtype).view(*maps.shape[:-2], *sides)
