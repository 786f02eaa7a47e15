"""Heads that predict a class for each pixel from the features of patches."""

from __future__ import annotations

import torch
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

    def forward(
        self, features: Tensor, size: tuple[int, int], grids: Tensor | None = None
    ) -> Tensor:
        """Compute logits [B, classes, H, W] from features [B, D, rows, columns].

        Args:
            features: Features of patches.
            size: Height H and width W in pixels.
            grids: Rows and columns of the patches of each image, int [B, 2], in the upper left
                corner. None: all of them.
        """
        return _resize(self.classifier(features), size, grids)


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

    def forward(
        self, features: Tensor, size: tuple[int, int], grids: Tensor | None = None
    ) -> Tensor:
        """Compute logits [B, classes, H, W] from features [B, D, rows, columns].

        Args:
            features: Features of patches.
            size: Height H and width W in pixels.
            grids: Rows and columns of the patches of each image, int [B, 2], in the upper left
                corner. None: all of them.
        """
        *coarse, finest = (scale(features) for scale in self.scales)
        # the n-th map has 2^n cells along the side of a patch
        for number, feature_map in enumerate(coarse):
            cells = None if grids is None else grids * 2**number
            finest = finest + _resize(feature_map, finest.shape[2:], cells)
        cells = None if grids is None else grids * 2 ** len(coarse)
        return _resize(self.classifier(F.gelu(finest)), size, cells)


def _resize(maps: Tensor, size: tuple[int, int], cells: Tensor | None) -> Tensor:
    """Resize maps [B, C, h, w] bilinearly; each ends after its rows and columns, int [B, 2]."""
    if cells is not None:
        # Beyond its end a map repeats its last row and column, which is what a resized map does.
        rows, columns = (
            torch.arange(count, device=maps.device).minimum(cells[:, axis, None] - 1)
            for axis, count in enumerate(maps.shape[2:])
        )  # [B, h], [B, w]
        # All indices are known without reading sizes, for which the host would wait.
        batch = torch.arange(len(maps), device=maps.device)[:, None, None]
        maps = maps.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None]]
        maps = maps.permute(0, 3, 1, 2)
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=False)
