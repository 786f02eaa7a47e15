"""The inputs of a captured model: which of their sizes vary, examples, and their description."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.export import Dim

from zoo.data.spec import DataSpec, ImageSpec, PointSpec, TokenSpec
from zoo.errors import OptionError

Spec = TypeVar("Spec", bound=DataSpec)


class InputSizes(ABC, Generic[Spec]):
    """The variable sizes of a model's inputs, and inputs of such sizes.

    Args:
        spec: The facts of the samples that the model reads.
        model: The model.
    """

    max_length: int | None = None
    """Length of the longest text that the model accepts. None: any length, or no texts."""

    def __init__(self, spec: Spec, model: nn.Module) -> None:
        self.spec = spec
        self.generator = torch.Generator().manual_seed(0)

    @property
    @abstractmethod
    def names(self) -> dict[str, tuple[str | int, ...]]:
        """Each axis of each input: the name of a variable size, or a fixed size."""

    @abstractmethod
    def build_dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the variable axes of each argument."""

    @abstractmethod
    def draw_examples(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield inputs of several sizes; the first is the one to capture."""

    @abstractmethod
    def describe(self) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the entry `inputs` of model.json."""


class ImageSizes(InputSizes[ImageSpec]):
    """Sizes of images and videos, whose sides are multiples of a patch."""

    def __init__(self, spec: ImageSpec, model: nn.Module) -> None:
        super().__init__(spec, model)
        self.patch: tuple[int, ...] = getattr(model, "patch_shape", ())

    @property
    def names(self) -> dict[str, tuple[str | int, ...]]:
        sides = ("frames", "height", "width")[-len(self.patch) :]
        return {"inputs": ("batch", self.spec.channels, *sides)}

    def build_dynamic_shapes(self) -> tuple[Any, ...]:
        counts = ("tubelets", "rows", "columns")[-len(self.patch) :]
        sides = {}
        for axis, (name, step) in enumerate(zip(counts, self.patch, strict=True), start=2):
            # torch.export then knows that sides are multiples of a patch, and divides without a
            # remainder
            sides[axis] = step * Dim(name, min=1, max=2**20) if step > 1 else Dim(name)
        return ({0: Dim("batch"), **sides},)

    def draw_examples(self) -> Iterator[tuple[Tensor, ...]]:
        shapes = ((2, 3, 4), (1, 4, 4), (3, 6, 3), (2, 8, 10))
        frames = ((2,), (3,), (2,), (4,)) if len(self.patch) == 3 else ((),) * 4
        for (batch, *patches), tubelets in zip(shapes, frames, strict=True):
            counts = (*tubelets, *patches)
            sides = [count * step for count, step in zip(counts, self.patch, strict=True)]
            shape = (batch, self.spec.channels, *sides)
            yield (torch.randn(shape, generator=self.generator),)

    def describe(self) -> dict[str, Any]:
        ((name, shape),) = self.names.items()
        return {
            "name": name,
            "shape": list(shape),
            "dtype": "float32",
            "multiples": list(self.patch),
        }


class TextSizes(InputSizes[TokenSpec]):
    """Lengths of texts."""

    def __init__(self, spec: TokenSpec, model: nn.Module) -> None:
        super().__init__(spec, model)
        self.max_length = find_max_length(model, spec)

    @property
    def names(self) -> dict[str, tuple[str | int, ...]]:
        return {"inputs": ("batch", "length")}

    def build_dynamic_shapes(self) -> tuple[Any, ...]:
        return ({0: Dim("batch"), 1: Dim("length", max=self.max_length)},)

    def draw_examples(self) -> Iterator[tuple[Tensor, ...]]:
        size = len(self.spec.vocabulary)
        for batch, most in list_token_counts(self.spec.length):
            length = min(most, self.max_length or most)
            yield (torch.randint(size, (batch, length), generator=self.generator),)

    def describe(self) -> dict[str, Any]:
        ((name, shape),) = self.names.items()
        return {"name": name, "shape": list(shape), "dtype": "int64", "max_length": self.max_length}


class PointSizes(InputSizes[PointSpec]):
    """Numbers of points."""

    @property
    def names(self) -> dict[str, tuple[str | int, ...]]:
        axes = ("batch", "points")
        return {"x": (*axes, self.spec.features), "pos": (*axes, self.spec.axes), "mask": axes}

    def build_dynamic_shapes(self) -> tuple[Any, ...]:
        axes = {0: Dim("batch"), 1: Dim("points")}
        # the others are the variable arguments of the captured model
        return axes, (axes, axes)

    def draw_examples(self) -> Iterator[tuple[Tensor, ...]]:
        for batch, count in list_token_counts(self.spec.length):
            x, pos = (
                torch.randn(batch, count, width, generator=self.generator)
                for width in (self.spec.features, self.spec.axes)
            )
            # the last point is padding, except in the first sample
            mask = torch.ones(batch, count, dtype=torch.bool)
            mask[1:, -1] = False
            yield x, pos, mask

    def describe(self) -> list[dict[str, Any]]:
        dtypes = ("float32", "float32", "bool")
        pairs = zip(self.names.items(), dtypes, strict=True)
        return [
            {"name": name, "shape": list(shape), "dtype": dtype} for (name, shape), dtype in pairs
        ]


def list_token_counts(length: int) -> tuple[tuple[int, int], ...]:
    """Return pairs of a batch size and a number of tokens; `length` is that of training."""
    return (2, 11), (1, 5), (3, 37), (2, 2 * length)


SIZES: dict[type[DataSpec], type[InputSizes[Any]]] = {
    ImageSpec: ImageSizes,
    TokenSpec: TextSizes,
    PointSpec: PointSizes,
}
"""The sizes of each kind of samples that a graph can read."""


def make_sizes(spec: DataSpec, model: nn.Module) -> InputSizes[Any]:
    """Return the sizes of a model's inputs.

    Raises:
        OptionError: No graph can read such samples.
    """
    for kind, sizes in SIZES.items():
        if isinstance(spec, kind):
            return sizes(spec, model)
    message = f"graphs read images, texts and points, and this model reads {spec.noun}"
    raise OptionError("data.name", message)


def find_max_length(model: nn.Module, spec: TokenSpec) -> int | None:
    """Find the longest text that a model accepts; None if it accepts four times the training's."""

    def accepts(length: int) -> bool:
        try:
            model(torch.zeros(1, length, dtype=torch.long))
        except OptionError:
            return False
        return True

    refused = 4 * spec.length
    if accepts(refused):
        return None
    accepted = 1
    # by bisection, since a model says only whether it accepts a length
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        accepted, refused = (middle, refused) if accepts(middle) else (accepted, middle)
    return accepted
