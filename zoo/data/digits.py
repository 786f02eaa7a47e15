"""Handwritten digits: 1,797 images of 8 x 8 pixels, included in zoo (Alpaydin and Kaynak 1998)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from zoo.data.base import DataModule, FileBatch
from zoo.data.baselines import Baselines, fit_labels
from zoo.data.sampler import Key, ResumableLoader
from zoo.data.spec import DataSpec, ImageSpec, check_fractions, get_sides
from zoo.data.vision import ImageDecoder, Size, check_reads_images, read_image_files
from zoo.options import Between, Count
from zoo.registry import register

COUNT = 1797
SIDE = 8
"""Height and width in pixels."""
FRACTIONS = (0.7, 0.1, 0.2)
"""Fractions of the digits for train, val and test in sources that place them."""


@cache
def load_digits() -> tuple[Tensor, Tensor]:
    """Load images [1797, 1, 8, 8] from 0 (black) to 1 (white), and labels [1797].

    The tensors are cached; do not change them.
    """
    table = np.loadtxt(Path(__file__).with_suffix(".csv.gz"), delimiter=",")
    images = torch.from_numpy(table[:, :-1]).float().view(COUNT, 1, SIDE, SIDE) / 16
    return images, torch.from_numpy(table[:, -1]).long()


def select_digits(seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a split of all digits, for sources that place them.

    Args:
        seed: The seed that the splits are drawn from.
        number: 0 for train, 1 for val and 2 for test.
    """
    images, labels = load_digits()
    order = np.random.default_rng(seed).permutation(COUNT)
    ends = np.cumsum([round(fraction * COUNT) for fraction in FRACTIONS[:-1]])
    chosen = np.split(order, ends)[number]
    return images[chosen], labels[chosen]


@register
class Digits(DataModule):
    """Images [B, 1, height, width], resized bilinearly and normalized, with labels 0 to 9.

    `size` is the side of a square, or [height, width], to which digits are stretched. The split
    into train, val and test is drawn from the seed. Training images are shifted by up to `shift` of
    their width, rotated by up to `rotation` degrees and scaled by up to 1 +- `scale`; all draws
    depend on (seed, epoch, index).
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
        check_fractions(val, test)
        self.seed, self.batch_size, self.workers = seed, batch_size, workers
        self.val, self.test = val, test
        self.sides, self.augment = get_sides(size), (shift, rotation, scale)
        self.spec = ImageSpec(1, *self.sides, classes=10)

    @property
    def resizing(self) -> str:  # type: ignore[override]
        return "each side resized to its own length, bilinearly"

    def setup(self, stage: str) -> None:
        raw, labels = load_digits()
        images = self._resize(raw)
        images = (images - images.mean()) / images.std()
        # The splits are drawn from the seed; only train is augmented.
        order = torch.from_numpy(np.random.default_rng(self.seed).permutation(COUNT))
        val, test = round(self.val * COUNT), round(self.test * COUNT)
        rows = dict(
            zip(("test", "val", "train"), order.split([test, val, COUNT - val - test]), strict=True)
        )
        self.splits = {}
        for split, numbers in rows.items():
            augment = self.augment if split == "train" else (0.0, 0.0, 0.0)
            self.splits[split] = AugmentedImages(
                images[numbers], labels[numbers], self.seed, *augment
            )

    def read_files(self, paths: Sequence[Path], spec: DataSpec) -> Iterator[FileBatch]:
        """Read files as grayscale images of 8 x 8 pixels, as the digits are, with white ink."""
        # The same resizing and statistics as in training, so that predictions are comparable.
        check_reads_images(spec, 1)
        digits = self._resize(load_digits()[0])
        mean, std = digits.mean(), digits.std()

        def normalize(files: FileBatch) -> FileBatch:
            images = self._resize(files.batch.float() / 255)
            return files._replace(batch=(images - mean) / std)

        decoder = ImageDecoder((SIDE, SIDE), 1, "crop")
        return map(normalize, read_image_files(paths, decoder, self.batch_size, self.workers))

    def _resize(self, images: Tensor) -> Tensor:
        """Resize images [B, 1, 8, 8] to [B, 1, height, width]."""
        return F.interpolate(
            images, size=self.sides, mode="bilinear", align_corners=False, antialias=True
        )

    def build_loader(self, split: str) -> ResumableLoader:
        images, is_training = self.splits[split], split == "train"
        return ResumableLoader(
            images, self.batch_size, self.seed, self.workers, self.share, training=is_training
        )

    def count_samples(self, split: str) -> int:
        return len(self.splits[split])

    def fit_baselines(self) -> Callable[[Self], Baselines]:
        fitted = fit_labels(self.splits, self.spec)
        return lambda tested: fitted.score(tested.splits["test"])


class AugmentedImages(Dataset[tuple[Tensor, Tensor]]):
    """Images in memory, fetched by batches of keys. Training images are augmented.

    Args:
        images: Images [S, C, height, width].
        labels: Labels [S].
        seed: Seed of the augmentation.
        shift: Largest shift, as a fraction of the width.
        rotation: Largest rotation in degrees.
        scale: Largest change of scale.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, seed: int, shift: float, rotation: float, scale: float
    ) -> None:
        self.images, self.labels, self.seed = images, labels, seed
        self.amounts = np.array([math.radians(rotation), scale, 2 * shift, 2 * shift])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        images, labels = self.__getitems__([key])
        return images[0], labels[0]

    def __getitems__(self, keys: Sequence[Key]) -> tuple[Tensor, Tensor]:
        pairs = [key for key in keys if isinstance(key, tuple)]
        indices = [key[1] if isinstance(key, tuple) else key for key in keys]
        images = self.images[indices]
        if pairs and self.amounts.any():
            images = self._augment(images, pairs)
        return images, self.labels[indices]

    def _augment(self, images: Tensor, keys: list[tuple[int, int]]) -> Tensor:
        # One generator per sample, so that its draws do not depend on the batch.
        rngs = [np.random.default_rng([self.seed, *key]) for key in keys]
        draws = np.stack([rng.uniform(-1, 1, 4) for rng in rngs]) * self.amounts
        angle, growth, x, y = torch.from_numpy(draws).float().unbind(1)
        cos, sin = angle.cos() / (1 + growth), angle.sin() / (1 + growth)
        matrices = torch.stack([cos, -sin, x, sin, cos, y], dim=1).view(-1, 2, 3)
        grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
