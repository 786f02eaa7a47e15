"""Normalise and augment whole batches on the training device, drawing from torch's CPU state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.errors import OptionError
from zoo.registry import Between

Probability = Annotated[float, Between(0, 1)]
Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What training does to images, in this order; by default nothing.

    Each image has draws of its own unless a field says otherwise. If both mixup and cutmix are on,
    each batch has one of them, with equal probability.
    """

    area: Annotated[float, Between(0.01, 1)] = 1.0
    """Smallest fraction of the area to cut out and enlarge; 1 is off."""
    crop: Annotated[int, Between(0)] = 0
    """Pixels of black around an image, out of which one of its size is cut."""
    flip: Probability = 0.0
    """Probability of mirroring left and right."""
    randaugment: Annotated[int, Between(0)] = 0
    """Operations of RandAugment (arXiv:1909.13719), the same for a batch."""
    magnitude: Annotated[int, Between(0, 30)] = 9
    """Magnitude of those operations."""
    erasing: Probability = 0.0
    """Probability of blanking a rectangle to the mean (arXiv:1708.04896)."""
    mixup: Annotated[float, Between(0)] = 0.0
    """Alpha of Beta(alpha, alpha), one draw for a batch (arXiv:1710.09412)."""
    cutmix: Annotated[float, Between(0)] = 0.0
    """Alpha likewise, one draw for each image (arXiv:1905.04899)."""

    def build_transforms(self, sides: tuple[int, int]) -> tuple[list[Transform], list[Transform]]:
        """Return transforms of images in [0, 1] of these sides, and of normalised ones."""
        import kornia.augmentation as kornia
        from kornia.augmentation.auto import RandAugment

        before: list[Any] = []
        if self.area < 1:
            before.append(kornia.RandomResizedCrop(sides, scale=(self.area, 1.0)))
        if self.crop:
            before.append(kornia.RandomCrop(sides, padding=self.crop))
        if self.flip:
            before.append(kornia.RandomHorizontalFlip(p=self.flip))
        if self.randaugment:
            before.append(RandAugment(n=self.randaugment, m=self.magnitude))
        after = [kornia.RandomErasing(p=self.erasing)] if self.erasing else []
        return before, after

    def mix(self, images: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Mix images; the labels of mixed ones are [B, classes] in place of [B]."""
        use_cutmix = self.cutmix > 0 and (not self.mixup or bool(torch.rand(()) < 0.5))
        if use_cutmix:
            return _apply_cutmix(images, labels, self.cutmix, classes)
        return _apply_mixup(images, labels, self.mixup, classes) if self.mixup else (images, labels)


def _apply_mixup(
    images: Tensor, labels: Tensor, alpha: float, classes: int
) -> tuple[Tensor, Tensor]:
    """Mix each image with another one (kornia's mixup draws uniformly, whatever alpha is)."""
    weight = torch.distributions.Beta(alpha, alpha).sample().item()
    order = torch.randperm(len(labels)).to(labels.device)
    targets = F.one_hot(labels, classes).to(torch.float32)
    mixed = torch.lerp(images[order], images, weight)
    return mixed, torch.lerp(targets[order], targets, weight)


def _apply_cutmix(
    images: Tensor, labels: Tensor, alpha: float, classes: int
) -> tuple[Tensor, Tensor]:
    from kornia.augmentation import RandomCutMixV2

    cutmix = RandomCutMixV2(beta=alpha, data_keys=["input", "class"], use_correct_lambda=True)
    images, (found,) = cutmix(images, labels)
    # [B, 3]: the image's label, the label of the pasted patch, the weight of the latter
    own, patch = (F.one_hot(found[:, at].long(), classes).to(found.dtype) for at in (0, 1))
    return images, torch.lerp(patch, own, found[:, 2:])


class ImageTransform:
    """Normalises images to (image - mean) / std, in units of white, and augments those of training.

    `mean` and `std` are one number for all channels, or one for each.
    """

    def __init__(
        self,
        channels: int,
        sides: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        augment: Augmentation,
    ) -> None:
        for key, numbers in (("mean", mean), ("std", std)):
            if len(numbers) not in (1, channels):
                problem = f"{len(numbers)} numbers for {channels} channels; give 1 or {channels}"
                raise OptionError(key, problem)
        if min(std) <= 0:
            raise OptionError("std", f"{min(std):g} is not positive")
        self.sides, self.mean, self.std, self.augment = sides, tuple(mean), tuple(std), augment
        self._transforms: tuple[list[Transform], list[Transform]] | None = None

    def __call__(
        self, images: Tensor, labels: Tensor, *, training: bool, classes: int
    ) -> tuple[Tensor, Tensor]:
        """Transform a batch.

        Args:
            images: uint8 [B, C, height, width].
            labels: [B].
            training: Augment.
            classes: How many classes there are.

        Returns:
            Images float32 [B, C, height, width], and labels [B] or, of mixed images, [B, classes].
        """
        images = images.to(torch.float32) / 255
        if not training or self.augment == Augmentation():
            return self._normalize(images), labels
        if self._transforms is None:
            # not before: kornia takes seconds to import
            self._transforms = self.augment.build_transforms(self.sides)
        before, after = self._transforms
        for transform in before:
            images = transform(images)
        images = self._normalize(images)
        for transform in after:
            images = transform(images)
        return self.augment.mix(images, labels, classes)

    def denormalize(self, images: Tensor) -> Tensor:
        """Return images [B, C, height, width] in units of white again."""
        mean, std = self._get_statistics(images)
        return images * std + mean

    def _normalize(self, images: Tensor) -> Tensor:
        mean, std = self._get_statistics(images)
        return (images - mean) / std

    def _get_statistics(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = images.new_tensor(self.mean), images.new_tensor(self.std)
        return mean[:, None, None], std[:, None, None]


@contextmanager
def isolate_rng(*numbers: int) -> Iterator[None]:
    """Seed the CPU's random state from these numbers, and restore it afterwards.

    Augmentation is then the same whatever a model draws, such as one encoding and not another.
    """
    seed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed >> np.uint64(1)))
        yield
