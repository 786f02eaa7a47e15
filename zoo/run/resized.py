"""The baseline of image sizes: resize each image to the training size before a model reads it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from zoo.data.spec import DataSpec, ImageSpec


def resize_maps(maps: Tensor, sides: tuple[int, int]) -> Tensor:
    """Resize images, or logits of pixels, bilinearly with antialiasing.

    Each side is resized to its own length, so the aspect ratio may change.

    Args:
        maps: Maps [..., H, W].
        sides: The new height and width.

    Returns:
        Maps [..., height, width] of the same dtype.
    """
    if tuple(maps.shape[-2:]) == sides:
        return maps
    # in float32, since there is no kernel for half precision on all devices
    flat = maps.flatten(0, -4) if maps.dim() > 4 else maps
    resized = F.interpolate(
        flat.float(), sides, mode="bilinear", align_corners=False, antialias=True
    )
    return resized.to(maps.dtype).view(*maps.shape[:-2], *sides)


class ResizedInputs(nn.Module):
    """A model that reads every image at the training size.

    Its encodings see no position that training did not have. Logits of pixels are resized back to
    the size of the image.

    Args:
        model: A model from images [B, C, H, W] or videos [B, C, T, H, W] to logits.
        size: Training height and width in pixels.
        is_dense: Whether the logits are those of pixels, [B, classes, H, W].
    """

    def __init__(self, model: nn.Module, size: tuple[int, int], *, is_dense: bool) -> None:
        super().__init__()
        self.model, self.size, self.is_dense = model, size, is_dense

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits [B, classes], or [B, classes, H, W] of pixels, of images of any size."""
        logits = self.model(resize_maps(images, self.size))
        if not self.is_dense:
            return logits
        height, width = images.shape[-2:]
        return resize_maps(logits, (height, width))


def explain_unresizable(spec: DataSpec) -> str:
    """Return why samples cannot be resized to the training size; empty if they can."""
    if isinstance(spec, ImageSpec):
        return ""
    problem = f"resize applies to images, and this model reads {spec.noun}"
    return f"{problem}; leave it out of evaluate.extrapolation"
