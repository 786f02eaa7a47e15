"""Pictures inside the page: small files as addresses."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO

import torch
from torch import Tensor
from torch.nn import functional as F

ROOM = 300_000  # bytes of all pictures together
SMALL = 64  # pixels of a side, up to which every pixel is kept as it is


def address(file: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"


def pack(pictures: Sequence[Tensor]) -> tuple[list[str], int]:
    """Pictures uint8 [height, width, 3] as addresses, and by how much they were made smaller so that they fit in."""
    for smaller in (1, 2, 4, 8, 16):
        packed = [_file(_shrunk(picture, smaller)) for picture in pictures]
        if sum(map(len, packed)) <= ROOM:
            break
    return packed, smaller


def _shrunk(picture: Tensor, times: int) -> Tensor:
    """Means of `times` by `times` pixels; what is small stays."""
    if times == 1 or min(picture.shape[:2]) <= SMALL:
        return picture
    means = F.avg_pool2d(picture.permute(2, 0, 1).float(), times, ceil_mode=True)
    return means.round().to(torch.uint8).permute(1, 2, 0)


def _file(picture: Tensor) -> str:
    from PIL import Image

    image, file = Image.fromarray(picture.contiguous().numpy()), BytesIO()
    if max(picture.shape[:2]) <= SMALL:
        image.save(file, "PNG", optimize=True)
        return address(file.getvalue(), "png")
    image.save(file, "JPEG", quality=82, optimize=True)
    return address(file.getvalue(), "jpeg")
