"""The baseline of segmentation at larger sizes: predict in windows of the training size."""

from __future__ import annotations

from torch import Tensor, nn

from zoo.data.spec import DataSpec


class SlidingWindow(nn.Module):
    """Reads a large image in overlapping windows, and averages their logits where they overlap.

    Windows start at multiples of the stride; the last ones end with the image. No position is then
    larger than in training.

    Args:
        model: A model from images to logits of pixels.
        size: Height and width of a window in pixels.
        stride: Pixels between the starts of windows. None: half of each side.
    """

    def __init__(self, model: nn.Module, size: tuple[int, int], stride: int | None = None) -> None:
        super().__init__()
        self.model, self.size = model, size
        self.strides = [stride or max(1, side // 2) for side in size]

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits [B, classes, H, W] from images [B, C, H, W]."""
        sides = [min(side, whole) for side, whole in zip(self.size, images.shape[2:], strict=True)]
        rows, columns = (
            # the last window ends with the image, whatever its overlap with the one before
            [*range(0, whole - side, stride), whole - side]
            for side, whole, stride in zip(sides, images.shape[2:], self.strides, strict=True)
        )
        total, count = None, images.new_zeros(images.shape[2:])
        for top in rows:
            for left in columns:
                window = (slice(top, top + sides[0]), slice(left, left + sides[1]))
                logits = self.model(images[..., window[0], window[1]])
                if total is None:
                    total = logits.new_zeros(*logits.shape[:2], *images.shape[2:])
                total[..., window[0], window[1]] += logits
                count[window] += 1
        assert total is not None
        return total / count


def explain_unslidable(spec: DataSpec) -> str:
    """Return why a model of such samples cannot read windows of an image; empty if it can."""
    if spec.target_unit == "pixel":
        return ""
    message = f"sliding_window joins predictions of pixels, and {spec.noun} have no masks"
    return f"{message}; leave it out of evaluate.extrapolation"
