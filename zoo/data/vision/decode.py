"""Decode image files to arrays of one size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from zoo.data.base import FileBatch
from zoo.data.sampler import keep_batch
from zoo.data.spec import DataSpec, ImageSpec
from zoo.errors import OptionError
from zoo.registry import Count

Size = Count | tuple[Count, Count]
RESIZING = {
    "crop": "resized to cover the size, bicubically, and the centre kept",
    "exact": "each side resized to its own length, bicubically",
}


def get_sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width of a size, which is that of a square if it is one number."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


@dataclass(frozen=True)
class ImageDecoder:
    """Decodes images to uint8 [channels, height, width], resized bicubically.

    `crop` resizes an image until it just covers the size, and keeps the centre; `exact` resizes
    each side to its own length.
    """

    sides: tuple[int, int]
    """Height and width."""
    channels: int
    resize: Literal["crop", "exact"]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, *self.sides

    def decode(self, content: bytes) -> NDArray[np.uint8]:
        """Decode the bytes of a file. Raises ValueError if they are no image, or a damaged one."""
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(BytesIO(content)) as file:
                image = file.convert("RGB" if self.channels == 3 else "L")
            pixels = np.asarray(self._resize(image)).reshape(*self.sides, -1)
            return pixels.transpose(2, 0, 1)
        except UnidentifiedImageError:
            raise ValueError("no image of a known format") from None
        except Exception as error:
            # each format raises its own
            raise ValueError(str(error) or type(error).__name__) from None

    def stack(self, images: Sequence[NDArray[np.uint8]]) -> torch.Tensor:
        """Stack decoded images, of which there may be none, to [B, C, H, W]."""
        return torch.from_numpy(np.stack(images) if images else np.empty((0, *self.shape), "u1"))

    def _resize(self, image: Any) -> Any:
        from PIL.Image import Resampling

        height, width = self.sides
        resized = (width, height)
        if self.resize == "crop":
            factor = max(width / image.width, height / image.height)
            resized = (round(image.width * factor), round(image.height * factor))
        if resized != image.size:
            image = image.resize(resized, Resampling.BICUBIC)
        left, top = (resized[0] - width) // 2, (resized[1] - height) // 2
        return image.crop((left, top, left + width, top + height))


def read_image(image: Mapping[str, Any] | None) -> bytes:
    """Return the bytes of an image in a table, which holds them or names their file.

    Raises:
        ValueError: The table has no image.
        OSError: The file cannot be read.
    """
    import fsspec

    if image and image.get("bytes"):
        return bytes(image["bytes"])
    if not image or not image.get("path"):
        raise ValueError("there is no image")
    with fsspec.open(image["path"], "rb") as file:
        return bytes(file.read())


class ImageFiles(Dataset[FileBatch]):
    """Image files, fetched by batches of their numbers as uint8 [B, C, H, W]."""

    def __init__(self, paths: Sequence[Path], decoder: ImageDecoder) -> None:
        self.paths, self.decoder = paths, decoder

    def __len__(self) -> int:
        return len(self.paths)

    def __getitems__(self, numbers: Sequence[int]) -> FileBatch:
        images: dict[Path, NDArray[np.uint8]] = {}
        errors: dict[Path, str] = {}
        for path in (self.paths[number] for number in numbers):
            try:
                images[path] = self.decoder.decode(path.read_bytes())
            except (OSError, ValueError) as error:
                errors[path] = _describe(error)
        return FileBatch(tuple(images), self.decoder.stack([*images.values()]), errors)


def read_image_files(
    paths: Sequence[Path], decoder: ImageDecoder, batch_size: int, workers: int
) -> Iterator[FileBatch]:
    """Yield batches of image files in their order."""
    # one worker for each batch that there is to wait for
    workers = min(workers, -(-len(paths) // batch_size) - 1)
    yield from DataLoader(
        ImageFiles(paths, decoder), batch_size, num_workers=max(workers, 0), collate_fn=keep_batch
    )


def check_reads_images(spec: DataSpec, channels: int) -> None:
    """Raise OptionError if a model reads something other than images with so many channels."""
    if type(spec) is not ImageSpec:
        raise OptionError("name", f"a source of images, but the model was trained on {spec.noun}")
    if spec.channels != channels:
        problem = f"{channels} channels, but the model was trained on images of {spec.channels}"
        raise OptionError("channels", problem)


def _describe(error: Exception) -> str:
    """Say what is wrong, in one line."""
    cause = error.strerror if isinstance(error, OSError) else str(error)
    return ((cause or "").splitlines() or [type(error).__name__])[0][:200]
