"""Scenes of handwritten digits of several sizes on a canvas, with a mask of each pixel's digit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from zoo.data.baselines import Baselines, fit_pixels
from zoo.data.digits import select_digits
from zoo.data.sampler import Key
from zoo.data.spec import SegmentationSpec, get_sides
from zoo.data.synthetic.base import LoaderOptions, SyntheticTask, split_keys
from zoo.data.vision import Size
from zoo.errors import OptionError
from zoo.options import Between, Count
from zoo.registry import register

BACKGROUND = 0
NAMES = ("background", *map(str, range(10)))
INK = 0.35
"""Brightness from which a pixel belongs to a digit."""
UNIT = 32 * 32
"""The area in pixels to which `density` refers."""


@register
class SegDigits(SyntheticTask):
    """Images [B, 1, height, width] of digits and noise, with masks [B, height, width].

    Class 0 is the background, and class 1 + d the digit d. `size` is the side of a square canvas,
    or [height, width]; a larger canvas has more digits of the same sizes, `density` on average in
    32 x 32 pixels. Each is `least` to `most` pixels high, and its width differs from the height by
    up to `stretch`. Later digits cover earlier ones, and may lie partly outside. `noise` is the
    standard deviation of Gaussian noise, in units of white. `train`, `val` and `test` are numbers
    of scenes; each split has its own digits, drawn from the seed. Training scenes depend on (seed,
    epoch, index).
    """

    def __init__(
        self,
        seed: int,
        *,
        size: Size = 32,
        density: Annotated[float, Between(0.1, 100)] = 3.0,
        least: Count = 10,
        most: Count = 20,
        stretch: Annotated[float, Between(0, 0.5)] = 0.25,
        noise: Annotated[float, Between(0, 1)] = 0.05,
        train: Count = 4_000,
        val: Count = 300,
        test: Count = 600,
        **options: Unpack[LoaderOptions],
    ) -> None:
        height, width = get_sides(size)
        if least > most:
            message = f"digits of at least {least} pixels, but at most {most}"
            raise OptionError("least", f"{message}; write {most} or less")
        if most > min(height, width):
            message = f"digits of {most} pixels on a canvas of {height} x {width}"
            raise OptionError("most", f"{message}; write {min(height, width)} or less")
        spec = SegmentationSpec(1, height, width, classes=len(NAMES), names=NAMES)
        super().__init__(seed, spec, train=train, val=val, test=test, **options)
        self.spec: SegmentationSpec = spec  # narrower than of other tasks
        self.sides, self.heights = (height, width), (least, most)
        self.stretch, self.noise = stretch, noise
        self.digits = max(1.0, density * height * width / UNIT)

    @property
    def resizing(self) -> str:  # type: ignore[override]
        return "scenes of that size, with digits of unchanged size"

    def draw_batch(self, seed: tuple[int, int], keys: Sequence[Key]) -> tuple[Tensor, Tensor]:
        images, labels = select_digits(self.seed, seed[1])
        rngs = [np.random.default_rng([*seed, *pair]) for pair in split_keys(keys)]
        scenes = [self._place_digits(rng, len(labels)) for rng in rngs]
        # one generator per scene, so that its noise does not depend on the batch
        noise = np.stack([rng.standard_normal(self.sides, np.float32) for rng in rngs])

        canvas = torch.zeros(len(keys), *self.sides)
        mask = torch.full(canvas.shape, BACKGROUND)
        # the n-th digit of all scenes at once; scenes have different numbers of them
        for number in range(max(map(len, scenes))):
            rows = [row for row, scene in enumerate(scenes) if number < len(scene)]
            placed = torch.from_numpy(np.stack([scenes[row][number] for row in rows]))
            chosen = placed[:, 0].long()
            ink = self._render(images[chosen], placed[:, 1:].float())  # [R, H, W]
            is_ink = ink > INK
            canvas[rows] = torch.where(is_ink, ink, torch.maximum(canvas[rows], ink))
            classes = (1 + labels[chosen])[:, None, None]
            mask[rows] = torch.where(is_ink, classes, mask[rows])
        return (canvas + self.noise * torch.from_numpy(noise))[:, None], mask

    def _place_digits(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw the digits of a scene.

        Args:
            rng: The generator of the scene.
            count: Number of digits to choose from.

        Returns:
            For each digit its number, centre (y, x) and sides (height, width) in pixels [N, 5].
        """
        # half to one and a half times the average number
        drawn = int(rng.integers(round(self.digits / 2), round(self.digits * 1.5) + 1))
        chosen = rng.integers(count, size=drawn)
        height = rng.uniform(*self.heights, size=drawn)
        width = height * rng.uniform(1 - self.stretch, 1 + self.stretch, size=drawn)
        centres = rng.uniform(size=(drawn, 2)) * self.sides
        return np.column_stack([chosen, centres, height, width])

    def _render(self, images: Tensor, places: Tensor) -> Tensor:
        """Return canvases [R, H, W] with images [R, 1, 8, 8] at places [R, 4]."""
        # An affine map from coordinates of the canvas to those of the digit, both from -1 to 1.
        sides = places.new_tensor(self.sides)
        scale = sides / places[:, 2:]  # [R, 2] as (y, x)
        centres = places[:, :2] * 2 / sides - 1
        matrices = torch.zeros(len(places), 2, 3)
        matrices[:, 0, 0], matrices[:, 1, 1] = scale[:, 1], scale[:, 0]
        matrices[:, :, 2] = -(scale * centres).flip(1)
        grid = F.affine_grid(matrices, [len(places), 1, *self.sides], align_corners=False)
        return F.grid_sample(images, grid, align_corners=False)[:, 0]

    def fit_baselines(self) -> Callable[[Self], Baselines]:
        splits = {split: self._build_samples(split) for split in ("train", "val")}
        fitted = fit_pixels(splits, self.spec, self.ignored_target)
        return lambda tested: fitted.score(tested._build_samples("test"))
