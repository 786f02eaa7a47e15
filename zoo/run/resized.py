"""The baseline of image sizes: resize each image to the training size before a model reads it."""

from __future__ import annotations

from torch import Tensor, nn

from zoo.data.resize import resize_maps
from zoo.data.spec import DataSpec


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
    if spec.is_image:
        return ""
    message = f"resize applies to images, and this model reads {spec.noun}"
    return f"{message}; leave it out of evaluate.extrapolation"
