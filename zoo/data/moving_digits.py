"""Clips of handwritten digits, each moving about a larger frame and bouncing off its edges. No download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from zoo.data.base import DataModule
from zoo.data.digits import COUNT, scanned
from zoo.data.sampler import ResumableLoader
from zoo.data.spec import VideoSpec
from zoo.data.vision.decode import Size, sides
from zoo.errors import OptionError
from zoo.registry import Between, Count, register

PARTS = ("train", "val", "test")
SHARES = (0.7, 0.1, 0.2)  # of the digits
HEADINGS = 8


@register
class MovingDigits(DataModule):
    """Clips [B, 1, frames, height, width], black 0 and white 1, of digits `side` pixels wide that move `speed` pixels a
    frame. `size` is that of square frames, or [height, width].

    The label is the digit, or its direction: the number of its heading at first, in eighths of a turn from rightward over
    downward; telling it takes where and when. Several digits of a clip move in one direction. `train`, `val` and `test` are
    numbers of clips, of digits that the seed has parted; those of training are drawn from (seed, epoch, index).
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
        batch_size: Count = 64,
        train: Count = 4_000,
        val: Count = 500,
        test: Count = 1_000,
        workers: Annotated[int, Between(0)] = 0,
    ) -> None:
        super().__init__()
        height, width = sides(size)
        if (shorter := min(height, width)) - side < 2 * speed:
            raise OptionError(
                "size",
                f"{shorter} leaves a digit of {side} pixels no room to move; make it {side + round(2 * speed)}",
            )
        if digits > 1 and label == "digit":
            raise OptionError(
                "digits", f"{digits} digits have no one label; set label to direction"
            )
        self.seed, self.batch_size, self.workers, self.label = seed, batch_size, workers, label
        self.sizes = {"train": train, "val": val, "test": test}
        self.motion = Motion(frames, (width, height), side, speed, digits)
        classes = 10 if label == "digit" else HEADINGS
        self.samples = VideoSpec(
            channels=1, height=height, width=width, classes=classes, frames=frames
        )

    @property
    def shown(self) -> str:  # type: ignore[override]
        return "frames of that size about digits of the same"

    def setup(self, stage: str) -> None:
        images, labels = scanned()
        order = np.random.default_rng(self.seed).permutation(COUNT)
        ends = np.cumsum([round(share * COUNT) for share in SHARES[:-1]])
        self.parts = {
            part: Moving(
                images[own],
                labels.numpy()[own],
                self.motion,
                self.label,
                self.sizes[part],
                (self.seed, number),
            )
            for number, (part, own) in enumerate(zip(PARTS, np.split(order, ends), strict=True))
        }

    def loader(self, part: str) -> ResumableLoader:
        return ResumableLoader(
            self.parts[part],
            self.batch_size,
            self.seed,
            self.workers,
            self.share,
            training=part == "train",
        )

    def count(self, part: str) -> int:
        return self.sizes[part]


class Motion:
    """How digits of `side` pixels move in `frames` of `size`, a width and a height."""

    def __init__(
        self, frames: int, size: tuple[int, int], side: int, speed: float, digits: int
    ) -> None:
        self.frames, self.size, self.side, self.speed, self.digits = (
            frames,
            np.array(size),
            side,
            speed,
            digits,
        )

    def paths(self, draws: NDArray[np.float64], heading: NDArray[np.int64]) -> NDArray[np.float64]:
        """Upper left corners [B, frames, 2] as (x, y), of uniform draws [B, 2] and headings [B]. No first step bounces."""
        angle = heading * 2 * np.pi / HEADINGS
        step = self.speed * np.stack([np.cos(angle), np.sin(angle)], axis=1)  # [B, 2]
        room = self.size - self.side
        start = np.maximum(-step, 0) + draws * (room - np.abs(step))
        far = start[:, None] + step[:, None] * np.arange(self.frames)[:, None]
        return room - np.abs(far % (2 * room) - room)

    def drawn(self, images: Tensor, corners: Tensor) -> Tensor:
        """Clips [B, 1, frames, height, width] of images [B, 1, 8, 8] at corners [B, frames, 2]."""
        size = corners.new_tensor(self.size.tolist())
        scale = size / self.side
        centres = (
            corners + self.side / 2
        ) * 2 / size - 1  # [B, frames, 2], the frame spans -1 to 1
        matrices = torch.zeros(*centres.shape, 3)
        matrices[..., 0, 0], matrices[..., 1, 1] = scale
        matrices[..., 2] = -scale * centres
        shape = [len(matrices.flatten(0, 1)), 1, *self.size[::-1].tolist()]
        places = F.affine_grid(matrices.flatten(0, 1), shape, align_corners=False)
        frames = F.grid_sample(
            images.repeat_interleave(self.frames, 0), places, align_corners=False
        )
        return frames.unflatten(0, (-1, self.frames)).transpose(1, 2)


class Moving(Dataset[tuple[Tensor, Tensor]]):
    """Clips drawn from `seed` and (epoch, index), or index, fetched by batches of those."""

    def __init__(
        self,
        images: Tensor,
        labels: NDArray[np.int64],
        motion: Motion,
        label: str,
        size: int,
        seed: tuple[int, int],
    ) -> None:
        self.images, self.labels, self.motion, self.label, self.size, self.seed = (
            images,
            labels,
            motion,
            label,
            size,
            seed,
        )

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> tuple[Tensor, Tensor]:
        pairs = [(0, key) if isinstance(key, int) else key for key in keys]
        draws = np.stack(
            [
                np.random.default_rng([*self.seed, *pair]).random(1 + 3 * self.motion.digits)
                for pair in pairs
            ]
        )
        heading = (draws[:, 0] * HEADINGS).astype(np.int64)
        clips, chosen = [], heading
        for own in np.split(draws[:, 1:], self.motion.digits, axis=1):  # [B, 3]
            chosen = (own[:, 0] * len(self.labels)).astype(np.int64)
            corners = torch.from_numpy(self.motion.paths(own[:, 1:], heading)).float()
            clips.append(self.motion.drawn(self.images[chosen], corners))
        labels = self.labels[chosen] if self.label == "digit" else heading
        return torch.stack(clips).amax(0), torch.from_numpy(labels)
