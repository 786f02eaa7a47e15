"""Images of two dots, drawn as they are needed: how far are they from each other? No download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.data.base import DataModule
from zoo.data.sampler import ResumableLoader
from zoo.data.spec import ImageSpec
from zoo.options import Between
from zoo.registry import register

PARTS = ("train", "val", "test")

Count = Annotated[int, Between(1)]


@register
class Dots(DataModule):
    """Images [B, 1, size, size] of two dots of height one and a pixel wide.

    Under a noise of deviation `noise`.

    The label is their distance, in `classes` steps up to the width of the image. `train`, `val` and
    `test` are numbers of images; those of training are drawn anew in every epoch.
    """

    spec: ImageSpec

    def __init__(
        self,
        seed: int,
        *,
        size: Annotated[int, Between(2)] = 16,
        classes: Annotated[int, Between(2)] = 4,
        noise: Annotated[float, Between(0)] = 0.1,
        batch_size: Count = 64,
        train: Count = 4_000,
        val: Count = 500,
        test: Count = 1_000,
        workers: Annotated[int, Between(0)] = 0,
    ) -> None:
        super().__init__()
        self.seed, self.batch_size, self.workers, self.noise = seed, batch_size, workers, noise
        self.sizes = {"train": train, "val": val, "test": test}
        self.spec = ImageSpec(channels=1, height=size, width=size, classes=classes)

    def build_loader(self, part: str) -> ResumableLoader:
        drawn = Drawn(self.sizes[part], self.spec, self.noise, (self.seed, PARTS.index(part)))
        return ResumableLoader(
            drawn, self.batch_size, self.seed, self.workers, self.share, training=part == "train"
        )

    def count_samples(self, part: str) -> int:
        return self.sizes[part]


class Drawn(Dataset[tuple[Tensor, Tensor]]):
    """Images drawn from `seed` and (epoch, index), or index, and fetched by batches of those."""

    def __init__(self, count: int, spec: ImageSpec, noise: float, seed: tuple[int, int]) -> None:
        self.count, self.spec, self.noise, self.seed = count, spec, noise, seed

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> tuple[Tensor, Tensor]:
        drawn = [self.one((0, key) if isinstance(key, int) else key) for key in keys]
        images, labels = zip(*drawn, strict=True)
        return torch.stack(images), torch.tensor(labels)

    def one(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        """[1, size, size] and its label."""
        generator = np.random.default_rng([*self.seed, *key])
        far, last = generator.random(), self.spec.height - 1
        angle = generator.uniform(0, 2 * np.pi)
        step = (
            last * far * np.array([np.sin(angle), np.cos(angle)])
        )  # from the first dot to the second
        first = np.maximum(-step, 0) + generator.random(2) * (last - abs(step))
        pixels = np.indices(self.spec.grid)
        dots = [
            np.exp(-np.square(pixels - dot[:, None, None]).sum(0) / 2)
            for dot in (first, first + step)
        ]
        image = sum(dots) + self.noise * generator.standard_normal(self.spec.grid)
        return torch.from_numpy(image).float()[None], int(far * self.spec.classes)
