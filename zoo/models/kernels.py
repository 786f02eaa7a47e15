"""The kernel that reads patches, for patches of another size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def resized(kernel: Tensor, steps: tuple[int, ...]) -> Tensor:
    """A kernel [D, C, (T,) p, p] as one that reads patches of `steps` pixels, ((tubelet,) patch, patch).

    A kernel of frames reads the middle one alone (central frame initialisation, Arnab et al. 2021, arXiv:2103.15691, 3.4),
    one of images the sum of what the frames' kernels read: what stands still is read as before.
    """
    if kernel.shape[2:] == steps:
        return kernel
    kernel = _stretched(kernel, steps[-1])
    if kernel.shape[2:] == steps:
        return kernel
    if kernel.dim() == 5:
        kernel = kernel.sum(2)
    if len(steps) == 2:
        return kernel
    frames = kernel.new_zeros(*kernel.shape[:2], steps[0], *kernel.shape[2:])
    frames[:, :, steps[0] // 2] = kernel
    return frames


def _stretched(kernel: Tensor, patch: int) -> Tensor:
    """The kernel [..., p, p] whose products with resized patches are nearest to those with the patches as they were.

    The pseudo-inverse of bilinear resizing (FlexiViT, Beyer et al. 2022, arXiv:2212.08013); exact for larger patches.
    """
    size = kernel.shape[-1]
    if size == patch:
        return kernel
    pixels = torch.eye(size, device=kernel.device)[None, None]  # of a row each, which is resized
    resizing = F.interpolate(pixels, (size, patch), mode="bilinear", antialias=True)[0, 0]  # [p, patch]
    back = torch.linalg.pinv(resizing.double()).to(kernel.dtype)  # [patch, p]
    return back @ kernel @ back.mT
