"""Augmentation of whole batches on the device that trains, with kornia, drawn from torch's random state on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.registry import Between

Share = Annotated[float, Between(0, 1)]
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What training does to images, in this order; by default nothing. Each image has draws of its own unless said.

    Where both mixup and cutmix are on, each batch has one of them, by the toss of a coin.
    """

    area: Annotated[float, Between(0.01, 1)] = (
        1.0  # smallest share of the area to cut out and enlarge; 1: off
    )
    crop: Annotated[int, Between(0)] = (
        0  # pixels of black around an image, out of which one of its size is cut
    )
    flip: Share = 0.0  # probability of mirroring left and right
    randaugment: Annotated[int, Between(0)] = (
        0  # operations of RandAugment (arXiv:1909.13719), the same for a batch
    )
    magnitude: Annotated[int, Between(0, 30)] = 9  # of those operations
    erasing: Share = 0.0  # probability of blanking a rectangle (arXiv:1708.04896) to the mean
    mixup: Annotated[float, Between(0)] = (
        0.0  # alpha of Beta(alpha, alpha), one draw for a batch (arXiv:1710.09412)
    )
    cutmix: Annotated[float, Between(0)] = (
        0.0  # alpha likewise, one draw for each image (arXiv:1905.04899)
    )

    def before(self, sides: tuple[int, int]) -> list[Change]:
        """Changes of images in [0, 1], of this height and width."""
        import kornia.augmentation as kornia
        from kornia.augmentation.auto import RandAugment

        changes: list[Any] = []
        if self.area < 1:
            changes.append(kornia.RandomResizedCrop(sides, scale=(self.area, 1.0)))
        if self.crop:
            changes.append(kornia.RandomCrop(sides, padding=self.crop))
        if self.flip:
            changes.append(kornia.RandomHorizontalFlip(p=self.flip))
        if self.randaugment:
            changes.append(RandAugment(n=self.randaugment, m=self.magnitude))
        return changes

    def after(self) -> list[Change]:
        """Changes of images of zero mean."""
        import kornia.augmentation as kornia

        return [kornia.RandomErasing(p=self.erasing)] if self.erasing else []

    def mixed(self, images: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Images and, where they are mixed, shares [B, classes] in the stead of labels [B]."""
        cut = self.cutmix > 0 and (not self.mixup or bool(torch.rand(()) < 0.5))
        if cut:
            return _cutmix(images, labels, self.cutmix, classes)
        return _mixup(images, labels, self.mixup, classes) if self.mixup else (images, labels)


def _mixup(images: Tensor, labels: Tensor, alpha: float, classes: int) -> tuple[Tensor, Tensor]:
    """Each image with another one (kornia's draws its shares uniformly, whatever alpha is)."""
    share = torch.distributions.Beta(alpha, alpha).sample().item()
    order = torch.randperm(len(labels)).to(labels.device)
    targets = F.one_hot(labels, classes).to(torch.float32)
    return torch.lerp(images[order], images, share), torch.lerp(targets[order], targets, share)


def _cutmix(images: Tensor, labels: Tensor, alpha: float, classes: int) -> tuple[Tensor, Tensor]:
    from kornia.augmentation import RandomCutMixV2

    change = RandomCutMixV2(beta=alpha, data_keys=["input", "class"], use_correct_lambda=True)
    images, found = change(images, labels)
    (found,) = found  # [B, 3]: own label, that of the patch, own share
    own, other = (
        F.one_hot(column.long(), classes).to(found.dtype) for column in found[:, :2].unbind(1)
    )
    return images, torch.lerp(other, own, found[:, 2:])
