"""Vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929), for images of any size that its patches divide.

Clips are cut into tubelets (Arnab et al. 2021, arXiv:2103.15691).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import coordinates as grids
from zoo.attention.coordinates import PositionAugmentation
from zoo.attention.encoding import Dims, EncodingFactories
from zoo.attention.tokens import Tokens
from zoo.data.spec import ImageSpec, VideoSpec
from zoo.errors import OptionError
from zoo.models.transformer import BlockOptions, Transformer
from zoo.registry import Between, Count, register


def resample_kernel(kernel: Tensor, steps: tuple[int, ...]) -> Tensor:
    """A kernel [D, C, (T,) p, p] as one that reads patches of `steps` pixels, ((tubelet,) patch, patch).

    A kernel of frames reads the middle one alone (central frame initialisation, Arnab et al. 2021, arXiv:2103.15691, 3.4),
    one of images the sum of what the frames' kernels read: what stands still is read as before.
    """
    if kernel.shape[2:] == steps:
        return kernel
    kernel = _resize_kernel(kernel, steps[-1])
    if kernel.shape[2:] == steps:
        return kernel
    if kernel.dim() == 5:
        kernel = kernel.sum(2)
    if len(steps) == 2:
        return kernel
    frames = kernel.new_zeros(*kernel.shape[:2], steps[0], *kernel.shape[2:])
    frames[:, :, steps[0] // 2] = kernel
    return frames


def _resize_kernel(kernel: Tensor, patch: int) -> Tensor:
    """The kernel [..., p, p] whose products with resized patches are nearest to those with the patches as they were.

    The pseudo-inverse of bilinear resizing (FlexiViT, Beyer et al. 2022, arXiv:2212.08013); exact for larger patches.
    """
    size = kernel.shape[-1]
    if size == patch:
        return kernel
    pixels = torch.eye(size, device=kernel.device)[None, None]  # of a row each, which is resized
    resizing = F.interpolate(pixels, (size, patch), mode="bilinear", antialias=True)[
        0, 0
    ]  # [p, patch]
    back = torch.linalg.pinv(resizing.double()).to(kernel.dtype)  # [patch, p]
    return back @ kernel @ back.mT


@register
class ViT(nn.Module):
    """Images [B, C, H, W], or clips [B, C, T, H, W], -> logits [B, classes].

    Tokens are the class token (if `pool` is class), `registers` (arXiv:2309.16588), then the patches row by row; of a clip,
    `tubelet` frames of a patch are one token, and the first frames come first. The class token has no place, or that of
    the centre; registers have none. Weights start as published: Xavier uniform in
    the blocks, LeCun normal in the patches, zeros in the head and the class token.
    """

    def __init__(
        self,
        samples: ImageSpec,
        *,
        dim: Count,
        depth: Count,
        heads: Count,
        kv_heads: Count | None = None,
        patch_size: Count,
        encoding: EncodingFactories,
        position_augmentation: PositionAugmentation = PositionAugmentation(),
        block: BlockOptions = BlockOptions(),
        pool: Literal["mean", "class"] = "mean",
        cls_position: Literal["none", "centre"] = "none",
        registers: Annotated[int, Between(0)] = 0,
        tubelet: Count = 1,
        attention: Literal["softmax", "linear"] = "softmax",
        backend: Literal["auto", "reference", "chunked", "sdpa", "flex"] = "auto",
    ) -> None:
        super().__init__()
        if cls_position == "centre" and pool != "class":
            raise OptionError("cls_position", "there is no class token to place; set pool to class")
        clips = isinstance(samples, VideoSpec)
        if tubelet > 1 and not clips:
            raise OptionError(
                "tubelet", f"images have no frames to join {tubelet} of; leave it out"
            )
        self.steps = (tubelet, patch_size, patch_size) if clips else (patch_size, patch_size)
        self.perturbation, self.centred = position_augmentation, cls_position == "centre"
        grid = self.sizes(*samples.grid)
        dims = Dims(dim, heads, axes=len(grid), length=grid, depth=depth, kv_heads=kv_heads)
        convolution = nn.Conv3d if clips else nn.Conv2d
        self.patch_embed = convolution(
            samples.channels,
            dim,
            kernel_size=self.steps,  # type: ignore[arg-type]
            stride=self.steps,  # type: ignore[arg-type]
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if pool == "class" else None
        self.register_tokens = (
            nn.Parameter(torch.randn(1, registers, dim) * 0.02) if registers else None
        )
        self.trunk = Transformer(dims, encoding, block, backend=backend, attention=attention)
        self.head = nn.Linear(dim, samples.classes)
        self._initialise()

    def sizes(self, *pixels: int) -> tuple[int, ...]:
        """The grid of patches of an image or a clip. Raises OptionError where the patch or the tubelet does not divide it."""
        *frames, height, width = pixels
        *tubelet, patch, _ = self.steps
        if height % patch or width % patch:
            raise OptionError(
                "patch_size", f"patch_size {patch} does not divide images of {height} x {width}"
            )
        if frames and frames[0] % tubelet[0]:
            raise OptionError(
                "tubelet", f"tubelet {tubelet[0]} does not divide clips of {frames[0]} frames"
            )
        return tuple(count // step for count, step in zip(pixels, self.steps, strict=True))

    def tokens(self, images: Tensor) -> Tokens:
        """Tokens of images [B, C, H, W] or clips [B, C, T, H, W], before the first block."""
        sizes = self.sizes(*images.shape[2:])
        x = self.patch_embed(images).flatten(2).mT  # [B, N, D]
        index = grids.grid(sizes, x)
        if self.training:
            index = self.perturbation(index, len(x))
        extra = [
            token.expand(len(x), -1, -1)
            for token in (self.cls_token, self.register_tokens)
            if token is not None
        ]
        count = sum(token.shape[1] for token in extra)
        extent = index.new_tensor([[sizes]])  # [1, 1, P]
        placed = None
        if count:
            x = torch.cat([*(token.to(x.dtype) for token in extra), x], dim=1)
            centre = ((extent[0] - 1) / 2).expand(*index.shape[:-2], count, -1)
            index = torch.cat([centre, index], dim=-2)  # at the centre, in case they are placed
            placed = torch.arange(x.shape[1], device=x.device) >= count
            if self.centred:
                placed[0] = True  # the class token stands first
        return Tokens.at(x, index, placed).replace(grid_size=extent)

    def forward(self, images: Tensor) -> Tensor:
        x = self.trunk(self.tokens(images)).x
        if self.cls_token is not None:
            return self.head(x[:, 0])
        first = 0 if self.register_tokens is None else self.register_tokens.shape[1]
        return self.head(x[:, first:].mean(1))

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        """Patches of another size, or of another number of frames, are read by the kernel resampled."""
        return resample_kernel(value, self.steps) if name == "patch_embed.weight" else value

    def _initialise(self) -> None:
        for module in self.trunk.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(
            self.patch_embed.weight, std=self.patch_embed.weight[0].numel() ** -0.5
        )
        for parameter in (self.patch_embed.bias, self.head.weight, self.head.bias):
            nn.init.zeros_(parameter)  # type: ignore[arg-type]
