"""Handwritten digits: 1,797 images of 8 x 8 pixels (Alpaydin and Kaynak 1998) that come with zoo. No download."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from zoo.data.base import DataModule, Given
from zoo.data.sampler import ResumableLoader
from zoo.data.spec import ImageSpec, Samples
from zoo.data.vision.dataset import pictures, refuse_others
from zoo.data.vision.decode import Decoding, Size, sides
from zoo.errors import OptionError
from zoo.registry import Between, Count, register

COUNT = 1797
SIDE = 8  # pixels


@cache
def scanned() -> tuple[Tensor, Tensor]:
    """Read images [1797, 1, 8, 8], black 0 and white 1, and labels [1797]; not to be changed in place."""
    table = np.loadtxt(Path(__file__).with_suffix(".csv.gz"), delimiter=",")
    images = torch.from_numpy(table[:, :-1]).float().view(COUNT, 1, SIDE, SIDE) / 16
    return images, torch.from_numpy(table[:, -1]).long()


@register
class Digits(DataModule):
    """Images [B, 1, height, width], resized bilinearly and brought to zero mean and unit variance, with labels 0 to 9.

    `size` is that of a square, or [height, width]: digits are then stretched. The split into train, val and test is drawn
    once from the seed. Training images are shifted by up to `shift` of their width, turned by up to `rotation` degrees and
    scaled by up to 1 +- `scale`, all drawn from (seed, epoch, index).
    """

    def __init__(
        self,
        seed: int,
        *,
        size: Size = 16,
        batch_size: Count = 64,
        val: float = 0.1,
        test: float = 0.2,
        shift: Annotated[float, Between(0, 1)] = 0.08,
        rotation: Annotated[float, Between(0, 180)] = 10.0,
        scale: Annotated[float, Between(0, 0.9)] = 0.1,
        workers: Annotated[int, Between(0)] = 0,
    ) -> None:
        super().__init__()
        for key, share in (("val", val), ("test", test)):
            if not 0 < share < 1 or val + test >= 1:
                raise OptionError(
                    key,
                    f"shares val {val} and test {test} must be positive and leave something to train on",
                )
        self.seed, self.batch_size, self.workers = seed, batch_size, workers
        self.shares = {"val": val, "test": test}
        self.sides, self.augment = sides(size), (shift, rotation, scale)
        self.samples = ImageSpec(1, *self.sides, classes=10)

    @property
    def shown(self) -> str:  # type: ignore[override]
        return "each side resized to its own length, bilinearly"

    def setup(self, stage: str) -> None:
        raw, labels = scanned()
        images = self._resized(raw)
        images = (images - images.mean()) / images.std()
        order = torch.from_numpy(np.random.default_rng(self.seed).permutation(COUNT))
        counts = {name: round(share * COUNT) for name, share in self.shares.items()}
        test, val, train = order.split(
            [counts["test"], counts["val"], COUNT - sum(counts.values())]
        )
        self.parts = {
            "train": Augmented(images[train], labels[train], self.seed, *self.augment),
            "val": Augmented(images[val], labels[val], self.seed),
            "test": Augmented(images[test], labels[test], self.seed),
        }

    def read(self, paths: Sequence[Path], samples: Samples) -> Iterator[Given]:
        """Files are made grey images of 8 x 8 first, as the digits are; ink is white."""
        refuse_others(samples, 1)
        every = self._resized(scanned()[0])
        mean, deviation = every.mean(), every.std()

        def finished(given: Given) -> Given:
            return given._replace(
                batch=(self._resized(given.batch.float() / 255) - mean) / deviation
            )

        return map(
            finished,
            pictures(paths, Decoding((SIDE, SIDE), 1, "crop"), self.batch_size, self.workers),
        )

    def _resized(self, images: Tensor) -> Tensor:
        """[B, 1, height, width] of images [B, 1, 8, 8]."""
        return F.interpolate(
            images, size=self.sides, mode="bilinear", align_corners=False, antialias=True
        )

    def loader(self, part: str) -> ResumableLoader:
        return ResumableLoader(
            self.parts[part],
            self.batch_size,
            self.seed,
            self.workers,
            self.share,
            training=part == "train",
        )

    def count(self, part: str) -> int:
        return len(self.parts[part])


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Images and labels in memory, fetched by batches of (epoch, index), or of indices without augmentation."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        seed: int,
        shift: float = 0.0,
        rotation: float = 0.0,
        scale: float = 0.0,
    ) -> None:
        self.images, self.labels, self.seed = images, labels, seed
        self.amounts = np.array([math.radians(rotation), scale, 2 * shift, 2 * shift])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[Tensor, Tensor]:
        images, labels = self.__getitems__([key])
        return images[0], labels[0]

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> tuple[Tensor, Tensor]:
        pairs = [key for key in keys if isinstance(key, tuple)]
        indices = [index for _, index in pairs] if pairs else list(keys)
        images = self.images[indices]
        if pairs and self.amounts.any():
            images = self._moved(images, pairs)
        return images, self.labels[indices]

    def _moved(self, images: Tensor, keys: list[tuple[int, int]]) -> Tensor:
        draws = (
            np.stack([np.random.default_rng([self.seed, *key]).uniform(-1, 1, 4) for key in keys])
            * self.amounts
        )
        angle, growth, x, y = torch.from_numpy(draws).float().unbind(1)
        cos, sin = angle.cos() / (1 + growth), angle.sin() / (1 + growth)
        matrices = torch.stack([cos, -sin, x, sin, cos, y], dim=1).view(-1, 2, 3)
        places = F.affine_grid(matrices, list(images.shape), align_corners=False)
        return F.grid_sample(images, places, padding_mode="border", align_corners=False)
