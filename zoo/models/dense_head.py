"""Heads that predict a class for each pixel from the features of patches."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class LinearHead(nn.Module):
    """A linear layer on each patch; logits are resized bilinearly to pixels (arXiv:2105.05633).

    Args:
        dim: Model dimension D.
        classes: Number of classes.
    """

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.classifier = nn.Conv2d(dim, classes, 1)

    def forward(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """Compute logits [B, classes, H, W] from features [B, D, rows, columns].

        Args:
            features: Features of patches.
            size: Height H and width W in pixels.
        """
        return _resize(self.classifier(features), size)


class MultiscaleHead(nn.Module):
    """A pyramid of maps made from one, with 1, 2 and 4 cells along the side of a patch.

    The maps are made by transposed convolutions (ViTDet, Li et al. 2022, arXiv:2203.16527),
    resized to the finest and added, and classified there (SegFormer, Xie et al. 2021,
    arXiv:2105.15203).

    Args:
        dim: Model dimension D.
        classes: Number of classes.
        patch_size: Side of a patch in pixels. No map is finer than pixels.
    """

    def __init__(self, dim: int, classes: int, patch_size: int) -> None:
        super().__init__()
        width = max(dim // 2, 1)
        scales: list[nn.Module] = [nn.Conv2d(dim, width, 1)]
        if patch_size >= 2:
            scales.append(nn.ConvTranspose2d(dim, width, 2, stride=2))
        if patch_size >= 4:
            scales.append(
                nn.Sequential(
                    nn.ConvTranspose2d(dim, width, 2, stride=2),
                    nn.GELU(),
                    nn.ConvTranspose2d(width, width, 2, stride=2),
                )
            )
        self.scales = nn.ModuleList(scales)
        self.classifier = nn.Conv2d(width, classes, 1)

    def forward(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """Compute logits [B, classes, H, W] from features [B, D, rows, columns].

        Args:
            features: Features of patches.
            size: Height H and width W in pixels.
        """
        *coarse, finest = (scale(features) for scale in self.scales)
        for one in coarse:
            finest = finest + _resize(one, finest.shape[2:])
        return _resize(self.classifier(F.gelu(finest)), size)


def _resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=False)
