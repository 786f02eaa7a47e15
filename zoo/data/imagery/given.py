"""Files of images that are given to a trained model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from zoo.data.given import Given
from zoo.data.imagery.decoding import Decoding
from zoo.errors import Invalid
from zoo.samples import Images, Samples


class Files(Dataset[Given]):
    """Files of images, fetched by batches of their numbers as uint8 [B, C, S, S]."""

    def __init__(self, paths: Sequence[Path], decoding: Decoding) -> None:
        self.paths, self.decoding = paths, decoding

    def __len__(self) -> int:
        return len(self.paths)

    def __getitems__(self, numbers: Sequence[int]) -> Given:
        images: dict[Path, Any] = {}
        faults: dict[Path, str] = {}
        for path in (self.paths[number] for number in numbers):
            try:
                images[path] = self.decoding(path.read_bytes())
            except (OSError, ValueError) as error:
                faults[path] = brief(error)
        stacked = np.stack([*images.values()]) if images else np.empty((0, *self.decoding.shape), np.uint8)
        return Given(tuple(images), torch.from_numpy(stacked), faults)


def pictures(paths: Sequence[Path], decoding: Decoding, batch_size: int, workers: int) -> Iterator[Given]:
    """Batches of files in their order."""
    files = Files(paths, decoding)
    workers = min(workers, -(-len(paths) // batch_size) - 1)  # one for a batch that there is to wait for
    yield from DataLoader(files, batch_size, num_workers=max(workers, 0), collate_fn=_as_fetched)


def refuse_others(samples: Samples, channels: int) -> None:
    """Raises Invalid where a model reads something other than images with so many channels."""
    if type(samples) is not Images:
        raise Invalid("name", f"a source of images, the model reads {type(samples).__name__.lower()}")
    if samples.channels != channels:
        raise Invalid("channels", f"{channels} channels, the model reads images of {samples.channels}")


def brief(error: Exception) -> str:
    """What is wrong, in one line."""
    told = error.strerror if isinstance(error, OSError) else str(error)
    return ((told or "").splitlines() or [type(error).__name__])[0][:200]


def _as_fetched(batch: Any) -> Any:
    return batch
