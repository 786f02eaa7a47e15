"""Data specs: the shapes, classes and vocabulary for which a model and a task are built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, get_args

from zoo.data.batches import PointBatch as PointBatch
from zoo.data.batches import TextBatch as TextBatch
from zoo.errors import OptionError

# Only annotations need torch.
if TYPE_CHECKING:
    pass


MAX_SAMPLE = 2**25
"""Tokens of one text, or numbers of an image, that a file may ask a model for."""
IGNORE_INDEX = -100
"""The target of tokens that are not predicted, the default `ignore_index` of PyTorch."""


LEAST_SQUARED, MOST_SQUARED = 1.1e-19, 1.8e19
"""Bounds of numbers whose squares float32 holds in full precision."""


@dataclass(frozen=True)
class ImageSpec:
    """Images [B, channels, height, width] with one label each."""

    noun: ClassVar[str] = "images"
    """The name of this kind of samples in messages."""

    channels: int
    height: int
    width: int
    classes: int
    names: tuple[str, ...] = field(default=(), kw_only=True)
    """Names of the classes; empty if they have none."""

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of pixels along each axis."""
        return self.height, self.width


@dataclass(frozen=True)
class VideoSpec(ImageSpec):
    """Clips [B, channels, frames, height, width] with one label each."""

    noun: ClassVar[str] = "videos"
    """The name of this kind of samples in messages."""

    frames: int

    @property
    def grid(self) -> tuple[int, ...]:
        return self.frames, self.height, self.width


@dataclass(frozen=True)
class SegmentationSpec(ImageSpec):
    """Images [B, channels, height, width] with a class for each pixel [B, height, width].

    Pixels of class -100 have no target.
    """

    noun: ClassVar[str] = "images with masks"
    """The name of this kind of samples in messages."""


class Vocabulary(Protocol):
    """A mapping between text and token ids."""

    @property
    def unit(self) -> Literal["character", "byte", "token"]:
        """The unit of one token; "token" if it has no fixed length."""
        ...

    def __len__(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Return token ids.

        Raises:
            OptionError: The vocabulary lacks characters of the text; the message names them.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def to_dict(self) -> dict[str, str]:
        """Return plain data for a checkpoint; `vocabulary_from_dict` reads it."""
        ...


@dataclass(frozen=True)
class TextSpec:
    """Windows of at most `length` tokens."""

    noun: ClassVar[str] = "text"
    """The name of this kind of samples in messages."""

    length: int
    vocabulary: Vocabulary
    targets: Literal["every", "some", "answers"] = "every"
    """Targets of a window: every next token, some of them, or one answer of several tokens."""


@dataclass(frozen=True)
class TextClassificationSpec:
    """Documents of at most `length` tokens, int64 [B, N] padded with -1, with one label each."""

    noun: ClassVar[str] = "labelled texts"
    """The name of this kind of samples in messages."""

    length: int
    vocabulary: Vocabulary
    classes: int
    names: tuple[str, ...] = ()
    """Names of the classes; empty if they have none."""


@dataclass(frozen=True)
class PointSpec:
    """Sets of at most `length` points with features at real coordinates, and one target each.

    The target is a class or, without classes, a list of numbers to predict.
    """

    noun: ClassVar[str] = "points"
    """The name of this kind of samples in messages."""

    features: int
    """Number of features of a point."""
    axes: int
    """Number of coordinates of a point, from 1 to 6."""
    length: int
    classes: int | None = None
    names: tuple[str, ...] = field(default=(), kw_only=True)
    """Names of the classes; empty if they have none."""
    target_means: tuple[float, ...] = field(default=(), kw_only=True)
    """Mean of each number to predict in the training data; empty if there are classes."""
    target_stds: tuple[float, ...] = field(default=(), kw_only=True)
    """Standard deviation of each number to predict in the training data."""

    @property
    def outputs(self) -> int:
        """Number of outputs of a model: one for each class, or for each number to predict."""
        return len(self.target_means) if self.classes is None else self.classes


DataSpec = ImageSpec | SegmentationSpec | TextSpec | TextClassificationSpec | PointSpec


def is_kind_of(spec: DataSpec, kinds: type | UnionType) -> bool:
    """Return whether samples are of one of some kinds, as an annotation names them.

    Videos are images. Images with masks are no images with labels: what reads them names them.
    """
    named = get_args(kinds) or (kinds,)
    if isinstance(spec, SegmentationSpec) and SegmentationSpec not in named and object not in named:
        return False
    return isinstance(spec, kinds)


def check_spec(spec: DataSpec) -> None:
    """Check facts of samples that a file states.

    Raises:
        ValueError: A size is no positive whole number or is beyond all use, or a name is no text.
    """
    sizes = [spec.length] if not isinstance(spec, ImageSpec) else [spec.channels, *spec.grid]
    if isinstance(spec, PointSpec):
        _check_points(spec)
        sizes = [spec.length, spec.features, spec.axes]
    classes = None if isinstance(spec, TextSpec) else spec.classes
    for size in [*sizes, *([] if classes is None else [classes])]:
        if type(size) is not int or size < 1:
            raise ValueError(f"{size!r:.40} is no size of a sample and no number of classes")
    if math.prod(sizes) > MAX_SAMPLE:
        problem = f"{math.prod(sizes):,} tokens or numbers, expected at most {MAX_SAMPLE:,}"
        raise ValueError(f"a sample has {problem}")
    names = () if isinstance(spec, TextSpec) else spec.names
    if names and (len(names) != classes or not all(isinstance(name, str) for name in names)):
        raise ValueError(f"the names of {classes} classes are not so many texts")


def _check_points(spec: PointSpec) -> None:
    scales = [*spec.target_means, *spec.target_stds]
    if not all(type(one) is float and math.isfinite(one) for one in scales):
        raise ValueError("means and deviations of targets are finite numbers")
    if len(spec.target_means) != len(spec.target_stds) or not all(
        one > 0 for one in spec.target_stds
    ):
        raise ValueError("each mean of targets needs a positive deviation")
    # metrics square targets in float32
    for noun, low, numbers in (
        ("mean", 0.0, spec.target_means),
        ("deviation", LEAST_SQUARED, spec.target_stds),
    ):
        for number in numbers:
            if not low <= abs(number) <= MOST_SQUARED:
                raise ValueError(f"float32 cannot hold the square of a {noun} of {number:g}")
    if bool(spec.target_means) == (spec.classes is not None):
        raise ValueError(
            "points have either classes or numbers to predict, with target_means and target_stds"
        )


def get_sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width of a size; one integer is the side of a square."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def name_classes(spec: DataSpec, count: int) -> tuple[str, ...]:
    """Return the names of so many classes; their numbers where the data has no names."""
    names = () if isinstance(spec, TextSpec) else spec.names
    return names or tuple(map(str, range(count)))


def check_fractions(val: float, test: float) -> None:
    """Check that fractions of val and test are positive and leave samples for training.

    Raises:
        OptionError: A fraction is not positive, or both together reach 1.
    """
    for key, fraction in (("val", val), ("test", test)):
        if not 0 < fraction < 1 or val + test >= 1:
            rule = "must be positive and leave samples for training"
            raise OptionError(key, f"fractions val {val} and test {test} {rule}")
