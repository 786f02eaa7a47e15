"""Batches of decoded images, finished on the device: brought to their scale and, in training, augmented."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from zoo.data.imagery.augmentation import Augmentation, Change
from zoo.errors import Invalid


@contextmanager
def alone(*numbers: int) -> Iterator[None]:
    """Draws of the CPU that are a function of these numbers, and change none that follow: augmentation is the same
    whatever a model draws, such as one encoding and not another.
    """
    seed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed >> np.uint64(1)))
        yield


class Finished:
    """(image - mean) / std of images uint8 in units of white; one number of each for all channels, or one per channel."""

    def __init__(
        self, channels: int, sides: tuple[int, int], mean: Sequence[float], std: Sequence[float], augment: Augmentation
    ) -> None:
        for key, numbers in (("mean", mean), ("std", std)):
            if len(numbers) not in (1, channels):
                raise Invalid(key, f"{len(numbers)} numbers for {channels} channels; give one of them, or {channels}")
        if min(std) <= 0:
            raise Invalid("std", f"{min(std):g} is not positive")
        self.sides, self.mean, self.std, self.augment = sides, tuple(mean), tuple(std), augment
        self._changes: tuple[list[Change], list[Change]] | None = None

    def __call__(self, images: Tensor, labels: Tensor, *, training: bool, classes: int) -> tuple[Tensor, Tensor]:
        """Images float32 [B, C, height, width], and labels [B] or shares [B, classes]."""
        images = images.to(torch.float32) / 255
        if not training or self.augment == Augmentation():
            return self._scaled(images), labels
        if self._changes is None:  # only now, for kornia takes seconds to import
            self._changes = (self.augment.before(self.sides), self.augment.after())
        before, after = self._changes
        for change in before:
            images = change(images)
        images = self._scaled(images)
        for change in after:
            images = change(images)
        return self.augment.mixed(images, labels, classes)

    def undone(self, images: Tensor) -> Tensor:
        """Images [B, C, height, width] in units of white again."""
        mean, std = self._numbers(images)
        return images * std + mean

    def _scaled(self, images: Tensor) -> Tensor:
        mean, std = self._numbers(images)
        return (images - mean) / std

    def _numbers(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images.new_tensor(self.mean)[:, None, None], images.new_tensor(self.std)[:, None, None]
