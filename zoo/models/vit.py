"""Vision transformer for images and videos (ViT; Dosovitskiy et al. 2020, arXiv:2010.11929).

Videos are divided into tubelets (Arnab et al. 2021, arXiv:2103.15691).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import coordinates
from zoo.attention.coordinates import PositionAugmentation
from zoo.attention.layer import check_layers
from zoo.attention.tokens import Tokens
from zoo.data.patch_rows import PatchRows, find_covered
from zoo.data.spec import ImageSpec, SegmentationSpec
from zoo.errors import OptionError
from zoo.models.dense_head import LinearHead, MultiscaleHead
from zoo.models.transformer import Transformer, TransformerOptions
from zoo.options import Between, Count
from zoo.registry import register


@register
class ViT(Transformer):
    """Images [B, C, H, W], or videos [B, C, T, H, W], -> logits [B, classes].

    For images with masks, logits are those of each pixel, [B, classes, H, W].

    Tokens are the CLS token (if `pool` is class), the register tokens, then the patches, row by row
    and frame by frame. Weights are initialized as published: Xavier uniform in the blocks, LeCun
    normal in the patch embedding, zeros in the head and the CLS token.

    Args:
        spec: Channels, size and classes of the images.
        patch_size: Height and width of a patch in pixels.
        position_augmentation: Random changes of positions in training.
        pool: Predict the class from the mean of the patches, or from the CLS token. Classes of
            pixels are predicted from their patches; `class` then only adds the CLS token.
        dense_head: The head for images with masks: `linear`, a linear layer on each patch, resized
            bilinearly, or `multiscale`, maps of up to four cells along the side of a patch.
        cls_position: The CLS token has no position, or the centre of the image.
        registers: Number of register tokens (arXiv:2309.16588), which have no position.
        tubelet: Number of frames of a video in one token.
        **options: Those of `Transformer`.

    Raises:
        OptionError: An option does not fit the others.
    """

    def __init__(
        self,
        spec: ImageSpec | SegmentationSpec,
        *,
        patch_size: Count,
        position_augmentation: PositionAugmentation = PositionAugmentation(),
        pool: Literal["mean", "class"] = "mean",
        dense_head: Literal["linear", "multiscale"] = "linear",
        cls_position: Literal["none", "centre"] = "none",
        registers: Annotated[int, Between(0)] = 0,
        tubelet: Count = 1,
        **options: Unpack[TransformerOptions],
    ) -> None:
        super().__init__(**options)
        dim = options["dim"]
        if cls_position == "centre" and pool != "class":
            raise OptionError("cls_position", "there is no CLS token; set pool to class")
        is_video = len(spec.grid) == 3
        if tubelet > 1 and not is_video:
            message = f"images have no frames to join into tubelets of {tubelet}; leave it out"
            raise OptionError("tubelet", message)
        self.head: nn.Module
        self.is_dense = spec.target_unit == "pixel"
        if dense_head != "linear" and not self.is_dense:
            message = f"{spec.noun} have one class each, and no pixel has one; leave it out"
            raise OptionError("dense_head", message)

        patch = (patch_size, patch_size)
        self.patch_shape: tuple[int, ...] = (tubelet, *patch) if is_video else patch
        self.position_augmentation = position_augmentation
        self.is_cls_centred = cls_position == "centre"

        # The patch embedding is a convolution whose stride is its kernel size.
        grid = self.grid_size(*spec.grid)
        convolution = nn.Conv3d if is_video else nn.Conv2d
        self.patch_embed = convolution(
            spec.channels,
            dim,
            kernel_size=self.patch_shape,  # type: ignore[arg-type]
            stride=self.patch_shape,  # type: ignore[arg-type]
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if pool == "class" else None
        self.register_tokens = None
        if registers:
            self.register_tokens = nn.Parameter(torch.randn(1, registers, dim) * 0.02)
        self.add_blocks(axes=len(grid), length=grid)
        if self.is_dense:
            self.head = _build_dense_head(dense_head, dim, spec.classes, patch_size)
        else:
            self.head = nn.Linear(dim, spec.classes)
        self._init_weights()

    def grid_size(self, *pixels: int) -> tuple[int, ...]:
        """Count the patches of an image ([H, W]) or a video ([T, H, W]) along each axis.

        Args:
            *pixels: Numbers of pixels, and of frames first for a video.

        Raises:
            OptionError: The patch does not divide the image, or the tubelet the video.
        """
        *frames, height, width = pixels
        *tubelet, patch, _ = self.patch_shape
        if height % patch or width % patch:
            message = f"patch_size {patch} does not divide images of {height} x {width}"
            raise OptionError("patch_size", message)
        if frames and frames[0] % tubelet[0]:
            message = f"tubelet {tubelet[0]} does not divide videos of {frames[0]} frames"
            raise OptionError("tubelet", message)
        return tuple(count // step for count, step in zip(pixels, self.patch_shape, strict=True))

    def tokens(
        self, images: Tensor, places: Tensor | None = None, members: Tensor | None = None
    ) -> Tokens:
        """Make the tokens of images [B, C, H, W] or videos [B, C, T, H, W].

        The other arguments are those of `forward`.
        """
        grid = self.grid_size(*images.shape[2:])
        x = self.patch_embed(images).flatten(2).mT  # [B, N, D]
        if places is not None:
            return self._make_rows(x, grid, PatchRows(places, members))
        index = coordinates.grid(grid, x)  # [N, P]
        if self.training:
            index = self.position_augmentation(index, len(x))
        size = coordinates.grid_shape(grid, index)  # [1, 1, P]

        special = [token for token in (self.cls_token, self.register_tokens) if token is not None]
        if not special:
            return Tokens.at(x, index).replace(grid_size=size)

        # Special tokens are placed at the centre of the grid, though most count as having no
        # position.
        x = torch.cat(
            [*(token.to(x.dtype).expand(x.shape[0], -1, -1) for token in special), x], dim=1
        )
        count = x.shape[1] - index.shape[-2]
        centre = ((size[0] - 1) / 2).expand(*index.shape[:-2], count, -1)
        index = torch.cat([centre, index], dim=-2)
        has_position = torch.arange(x.shape[1], device=x.device) >= count
        if self.is_cls_centred:
            has_position[0] = True  # the CLS token is the first
        return Tokens.at(x, index, has_position).replace(grid_size=size)

    def _make_rows(self, x: Tensor, grid: tuple[int, ...], rows: PatchRows) -> Tokens:
        """Make the tokens of rows: the special tokens of each image in it, then the patches.

        Each image is a document. No size is read, for which the host would wait.

        Args:
            x: Patches of all images, with padding [B, N, D].
            grid: Rows and columns of these N patches.
            rows: Where they go.
        """
        places, members = rows
        if len(grid) != 2:
            raise OptionError("places", "videos have one size each; leave places out")
        batch, patches, _ = x.shape
        is_real = places >= 0  # [R, L]
        # Only tokens of rows reach the blocks; the padding of the batch is left behind here.
        x = x.flatten(0, 1)[places.clamp(min=0)].masked_fill(~is_real[..., None], 0)  # [R, L, D]
        document = torch.where(is_real, places // patches, -1)
        number = places.clamp(min=0) % patches
        pair = torch.stack([number // grid[1], number % grid[1]], dim=-1)
        index = pair.to(torch.promote_types(x.dtype, torch.float32))  # [R, L, 2]

        # The grid of an image ends with its last row and column. Padding counts for one more image.
        of_image = torch.where(is_real, document, batch)
        last_cell = index.new_zeros(batch + 1, 2).scatter_reduce(
            0, of_image.flatten()[:, None].expand(-1, 2), index.flatten(0, 1), "amax"
        )
        if self.training:
            if members is not None and self.position_augmentation.per_sample:
                message = "images that share a row share its draws; leave it out, or data.pack"
                raise OptionError("position_augmentation.per_sample", message)
            centre = last_cell[of_image] / 2
            index = self.position_augmentation(index, len(x), centre)

        special: list[Tensor] = [
            token for token in (self.cls_token, self.register_tokens) if token is not None
        ]
        if special:
            # Each image of a row has special tokens of its own, before all patches.
            if members is None:
                members = torch.arange(batch, device=x.device)[:, None]
            prefix = torch.cat(special, dim=1).to(x.dtype)  # [1, k, D]
            owners = members.repeat_interleave(prefix.shape[1], dim=1)  # [R, S k]
            x = torch.cat([prefix.repeat(len(x), members.shape[1], 1), x], dim=1)
            document = torch.cat([owners, document], dim=1)
            of_image = torch.cat([torch.where(owners < 0, batch, owners), of_image], dim=1)
            index = torch.cat([last_cell[of_image[:, : owners.shape[1]]] / 2, index], dim=1)
            has_position = torch.arange(x.shape[1], device=x.device) >= owners.shape[1]
            if self.is_cls_centred:
                has_position[: owners.shape[1] : prefix.shape[1]] = True
        tokens = Tokens.at(x, index, has_position if special else None, document)
        return tokens.replace(grid_size=last_cell[of_image] + 1)

    def forward(
        self, images: Tensor, places: Tensor | None = None, members: Tensor | None = None
    ) -> Tensor:
        """Compute logits for images [B, C, H, W] or videos [B, C, T, H, W].

        Images of several sizes lie in the upper left corners of a batch, and `zoo.place_patches`
        lays out their patches. Each image is computed as if it were alone.

        Args:
            images: The images or videos.
            places: Numbers of patches that are the tokens of each row, int64 [R, L], -1 for
                padding; see `PatchRows`. None: all patches of each image.
            members: Numbers of the images in each row, int64 [R, S], -1 for none. None: row r is
                image r.

        Returns:
            Logits [B, classes]; for images with masks [B, classes, H, W], those of padding
            arbitrary.
        """
        tokens = self.tokens(images, places, members)
        x = self.run_blocks(tokens).x
        if places is not None:
            return self._predict_rows(x, images, PatchRows(places, members))
        if self.is_dense:
            return self.head(self._make_map(x, images), images.shape[2:])
        if self.cls_token is not None:
            return self.head(x[:, 0])
        return self.head(x[:, self.special_tokens :].mean(1))

    def _predict_rows(self, x: Tensor, images: Tensor, rows: PatchRows) -> Tensor:
        """Compute the logits of images from the states of rows [R, N, D]."""
        places, members = rows
        batch, grid = len(images), self.grid_size(*images.shape[2:])
        patches = grid[0] * grid[1]
        if members is None:
            members = torch.arange(batch, device=x.device)[:, None]
        first_patch = members.shape[1] * self.special_tokens
        is_real = places >= 0
        if self.is_dense:
            # What padding writes goes behind the last patch.
            target = torch.where(is_real, places, batch * patches).flatten()
            maps = x.new_zeros(batch * patches + 1, x.shape[2])
            maps = maps.index_copy(0, target, x[:, first_patch:].flatten(0, 1))[:-1]
            maps = maps.view(batch, *grid, -1).permute(0, 3, 1, 2)  # [B, D, h, w]
            covered = find_covered(places, batch, grid)
            sizes = torch.stack([covered.any(2).sum(1), covered.any(1).sum(1)], dim=1)  # [B, 2]
            return self.head(maps, images.shape[2:], sizes)

        if self.cls_token is not None:
            pooled = x[:, : first_patch : self.special_tokens]  # [R, S, D]
        else:
            # -2 is no number of an image, and -1 that of an empty place in a row.
            document = torch.where(is_real, places // patches, -2)
            is_member = document[:, None] == members[..., None]  # [R, S, L]
            shares = is_member.to(x.dtype) / is_member.sum(-1, keepdim=True).clamp(min=1)
            pooled = shares @ x[:, first_patch:]
        # In the order of the images; empty places of rows go behind the last one.
        target = torch.where(members < 0, batch, members).flatten()
        ordered = pooled.new_zeros(batch + 1, pooled.shape[2])
        return self.head(ordered.index_copy(0, target, pooled.flatten(0, 1))[:-1])

    def features(self, images: Tensor, layers: Sequence[int] = (-1,)) -> list[Tensor]:
        """Compute maps of the patches after some blocks.

        A map has the output of a block: the residual stream after its attention and its MLP, before
        the final norm, which `model.norm` applies along D. CLS and register tokens are left out. In
        training mode dropout and position augmentation apply, as in `forward`.

        Args:
            images: Images [B, C, H, W], or videos [B, C, T, H, W].
            layers: Numbers of blocks from 0; negative ones count from the end.

        Returns:
            For each of the layers a map [B, D, h, w] of h x w patches; [B, D, t, h, w] for videos.

        Raises:
            OptionError: There is no such layer, or the patch does not divide the images.
        """
        chosen = check_layers(layers, len(self.blocks))
        # In the order of the blocks; a layer that is named twice is kept once.
        maps: dict[int, Tensor] = {}

        def keep(number: int, tokens: Tokens) -> None:
            if number in chosen:
                maps[number] = self._make_map(tokens.x, images)

        self.run_blocks(self.tokens(images), after_block=keep)
        return [maps[number] for number in chosen]

    @property
    def special_tokens(self) -> int:
        """Number of CLS and register tokens, which come before the patches."""
        special = (self.cls_token, self.register_tokens)
        return sum(token.shape[1] for token in special if token is not None)

    def _make_map(self, x: Tensor, images: Tensor) -> Tensor:
        """Return the states [B, N, D] of the patches of images as a map [B, D, h, w]."""
        return x[:, self.special_tokens :].mT.unflatten(2, self.grid_size(*images.shape[2:]))

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        """Resample the patch embedding of a model with other patches; return others unchanged."""
        if name == "patch_embed.weight":
            return resample_kernel(value, self.patch_shape)
        return value

    def _init_weights(self) -> None:
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        weight = self.patch_embed.weight
        nn.init.trunc_normal_(weight, std=weight[0].numel() ** -0.5)
        output_layer: Any = self.head.classifier if self.is_dense else self.head
        for parameter in (self.patch_embed.bias, output_layer.weight, output_layer.bias):
            nn.init.zeros_(parameter)  # type: ignore[arg-type]


def _build_dense_head(kind: str, dim: int, classes: int, patch_size: int) -> nn.Module:
    if kind == "linear":
        return LinearHead(dim, classes)
    return MultiscaleHead(dim, classes, patch_size)


def resample_kernel(kernel: Tensor, patch_shape: tuple[int, ...]) -> Tensor:
    """Resample a kernel [D, C, (T,) p, p] to patches of another shape, ((tubelet,) patch, patch).

    From images to videos, the kernel reads only the middle frame (central frame initialization,
    arXiv:2103.15691, section 3.4). From videos to images, it is the sum over frames, so that a
    still video gives the same features.
    """
    if kernel.shape[2:] == patch_shape:
        return kernel
    kernel = _resize_kernel(kernel, patch_shape[-1])
    if kernel.shape[2:] == patch_shape:
        return kernel
    if kernel.dim() == 5:
        kernel = kernel.sum(2)
    if len(patch_shape) == 2:
        return kernel
    frames = kernel.new_zeros(*kernel.shape[:2], patch_shape[0], *kernel.shape[2:])
    frames[:, :, patch_shape[0] // 2] = kernel
    return frames


def _resize_kernel(kernel: Tensor, patch: int) -> Tensor:
    """Resize a kernel [..., p, p] so that its products with resized patches stay nearly the same.

    It is multiplied by the pseudo-inverse of bilinear resizing (FlexiViT, Beyer et al. 2022,
    arXiv:2212.08013), which is exact for larger patches.
    """
    size = kernel.shape[-1]
    if size == patch:
        return kernel
    # Resizing is linear: applied to a basis of pixels along one axis, it gives its matrix.
    pixels = torch.eye(size, device=kernel.device)[None, None]
    resize = F.interpolate(pixels, (size, patch), mode="bilinear", antialias=True)[0, 0]
    inverse = torch.linalg.pinv(resize.double()).to(kernel.dtype)  # [patch, p]
    return inverse @ kernel @ inverse.mT
