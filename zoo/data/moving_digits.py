"""Clips of handwritten digits that move in a larger frame and bounce off its edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from zoo.data.digits import select_digits
from zoo.data.sampler import Key
from zoo.data.spec import VideoSpec, get_sides
from zoo.data.synthetic.base import LoaderOptions, SyntheticTask, split_keys
from zoo.data.vision import Size
from zoo.errors import OptionError
from zoo.options import Between, Count
from zoo.registry import register

HEADINGS = 8


@register
class MovingDigits(SyntheticTask):
    """Clips [B, 1, frames, height, width] from 0 (black) to 1 (white) of digits `side` pixels wide.

    Digits move by `speed` pixels per frame. `size` is the side of square frames, or
    [height, width]. The label is the digit or its direction: the number of its first heading in
    eighths of a turn, from rightward over downward. Only space and time together show the
    direction. All digits of a clip move in one direction. `train`, `val` and `test` are numbers of
    clips; each split has its own digits, drawn from the seed. Training clips depend on (seed,
    epoch, index).
    """

    def __init__(
        self,
        seed: int,
        *,
        frames: Annotated[int, Between(2)] = 8,
        size: Size = 32,
        side: Count = 12,
        digits: Count = 1,
        speed: Annotated[float, Between(0.01)] = 2.0,
        label: Literal["digit", "direction"] = "digit",
        train: Count = 4_000,
        val: Count = 500,
        test: Count = 1_000,
        **options: Unpack[LoaderOptions],
    ) -> None:
        height, width = get_sides(size)
        if (shorter := min(height, width)) - side < 2 * speed:
            message = f"{shorter} pixels leave a digit of {side} pixels no room to move"
            raise OptionError("size", f"{message}; make it {side + round(2 * speed)}")
        if digits > 1 and label == "digit":
            message = f"{digits} digits have no single label; set label to direction"
            raise OptionError("digits", message)
        classes = 10 if label == "digit" else HEADINGS
        spec = VideoSpec(channels=1, height=height, width=width, classes=classes, frames=frames)
        super().__init__(seed, spec, train=train, val=val, test=test, **options)
        self.label, self.digits = label, digits
        self.motion = Motion(frames, (width, height), side, speed)

    @property
    def resizing(self) -> str:  # type: ignore[override]
        return "frames of that size, with digits of unchanged size"

    def draw_batch(self, seed: tuple[int, int], keys: Sequence[Key]) -> tuple[Tensor, Tensor]:
        # Draws of a clip: its heading, and for each digit its number and position.
        images, labels = select_digits(self.seed, seed[1])
        rngs = [np.random.default_rng([*seed, *pair]) for pair in split_keys(keys)]
        draws = np.stack([rng.random(1 + 3 * self.digits) for rng in rngs])
        heading = (draws[:, 0] * HEADINGS).astype(np.int64)
        clips, chosen = [], heading
        for digit_draws in np.split(draws[:, 1:], self.digits, axis=1):  # [B, 3]
            chosen = (digit_draws[:, 0] * len(labels)).astype(np.int64)
            corners = torch.from_numpy(
                self.motion.compute_paths(digit_draws[:, 1:], heading)
            ).float()
            clips.append(self.motion.render(images[chosen], corners))
        # there is one digit then, as several have no single label
        targets = labels.numpy()[chosen] if self.label == "digit" else heading
        return torch.stack(clips).amax(0), torch.from_numpy(targets)


class Motion:
    """The motion of digits of `side` pixels in frames of `size` (width, height)."""

    def __init__(self, frames: int, size: tuple[int, int], side: int, speed: float) -> None:
        self.frames, self.size, self.side, self.speed = frames, np.array(size), side, speed

    def compute_paths(
        self, draws: NDArray[np.float64], heading: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the upper left corners of digits [B, frames, 2] as (x, y) in pixels.

        Args:
            draws: Uniform numbers [B, 2] that place the first corner. No first step bounces.
            heading: Headings [B] in eighths of a turn.
        """
        angle = heading * 2 * np.pi / HEADINGS
        step = self.speed * np.stack([np.cos(angle), np.sin(angle)], axis=1)  # [B, 2]
        room = self.size - self.side
        start = np.maximum(-step, 0) + draws * (room - np.abs(step))
        # Unfold the bounces: the position is a triangle wave of the distance travelled.
        distance = start[:, None] + step[:, None] * np.arange(self.frames)[:, None]
        return room - np.abs(distance % (2 * room) - room)

    def render(self, images: Tensor, corners: Tensor) -> Tensor:
        """Return clips [B, 1, frames, H, W] of images [B, 1, 8, 8] at corners [B, frames, 2]."""
        # An affine map from coordinates of the frame to those of the digit, both from -1 to 1.
        size = corners.new_tensor(self.size.tolist())
        scale = size / self.side
        centres = (corners + self.side / 2) * 2 / size - 1  # [B, frames, 2]
        matrices = torch.zeros(*centres.shape, 3)
        matrices[..., 0, 0], matrices[..., 1, 1] = scale
        matrices[..., 2] = -scale * centres
        shape = [len(matrices.flatten(0, 1)), 1, *self.size[::-1].tolist()]
        grid = F.affine_grid(matrices.flatten(0, 1), shape, align_corners=False)
        repeated = images.repeat_interleave(self.frames, 0)
        frames = F.grid_sample(repeated, grid, align_corners=False)
        return frames.unflatten(0, (-1, self.frames)).transpose(1, 2)
