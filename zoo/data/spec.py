"""Data specs: the shapes, classes and vocabulary for which a model and a task are built.

A spec answers what the rest of zoo asks about its samples. A plug-in adds a kind of data by a
subclass of `DataSpec`, which models and tasks name in the annotation of their argument `spec`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from zoo.data.batches import PointBatch as PointBatch
from zoo.data.batches import PointSample
from zoo.data.batches import TextBatch as TextBatch
from zoo.data.finite import explain_lost_differences
from zoo.data.padding import pad_points, pad_texts
from zoo.errors import OptionError
from zoo.options.plain import to_plain
from zoo.suggestions import join_words

MAX_SAMPLE = 2**25
"""Tokens of one text, or numbers of an image, that a file may ask a model for."""
IGNORE_INDEX = -100
"""The target of tokens that are not predicted, the default `ignore_index` of PyTorch."""
PADDING = -1
"""The token number of padding."""
MOST_NUMBERS = 6
"""Numbers of a token or a target that a page shows."""
SOURCE_OPTIONS = ("channels", "classes")
"""Fields of specs that are options of data sources too."""


LEAST_SQUARED, MOST_SQUARED = 1.1e-19, 1.8e19
"""Bounds of numbers whose squares float32 holds in full precision."""


class Numbering(NamedTuple):
    """Class or token numbers in a batch, and which of them exist."""

    values: Tensor
    """Numbers [B, ...]."""
    limit: int
    """Numbers from 0 to limit - 1 exist."""
    noun: str
    """The name of such a number in messages."""
    others: Collection[int] = ()
    """Other numbers that are allowed."""
    remedy: str = ""
    """The end of a message about a number that does not exist."""


@dataclass(frozen=True)
class DataSpec:
    """Facts of the samples of a data source, which a model and a task are built for.

    The base class of all kinds of samples. By default a sample is one tensor and one target, a
    class or numbers. A subclass is a frozen dataclass, whose fields a checkpoint stores: numbers,
    strings and tuples of them. It has a field `length`, the number of tokens of the longest sample,
    unless it names other `size_fields`.
    """

    noun: ClassVar[str] = "samples"
    """The name of this kind of samples in messages."""
    unit: ClassVar[str] = "samples"
    """What a training step counts: tokens of texts, samples of other data."""
    token_noun: ClassVar[str] = "tokens"
    """What a model divides a sample into."""
    target_unit: ClassVar[Literal["sample", "token", "pixel"]] = "sample"
    """What has a target: each sample, or each of its tokens or pixels."""
    is_image: ClassVar[bool] = False
    """True if samples are images or videos, which may be resized."""
    size_fields: ClassVar[tuple[str, ...]] = ("length",)
    """The fields that an evaluation may change: a length, or height and width."""
    fixed_fields: ClassVar[tuple[str, ...]] = ()
    """Fields and properties that training and evaluation must have in common."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of files with such samples. Pillow has those of images."""
    sample_form: ClassVar[str] = "a sample is (float tensor, label or numbers [T])"
    """The samples of a dataset of a Python program, in messages."""
    has_equal_shapes: ClassVar[bool] = True
    """True if all samples have one shape, so that a batch is a stack of them."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first input of a model, without the axis of the batch."""
        raise NotImplementedError(f"{type(self).__name__} does not define the shape of a sample")

    @property
    def size(self) -> tuple[int, ...]:
        """The size that an evaluation may change: tokens `(length,)`, or `(height, width)`."""
        return tuple(getattr(self, name) for name in self.size_fields)

    @property
    def size_key(self) -> Literal["resolutions", "lengths"]:
        """The key of the section `evaluate` with other sizes."""
        return "lengths" if len(self.size_fields) == 1 else "resolutions"

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of tokens or pixels along each axis."""
        return self.size

    @property
    def class_count(self) -> int | None:
        """Number of classes of targets; None if these are numbers or tokens."""
        return getattr(self, "classes", None)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; empty if they have none."""
        return getattr(self, "names", ())

    @property
    def token_vocabulary(self) -> Vocabulary | None:
        """The vocabulary of texts; None for other samples."""
        return getattr(self, "vocabulary", None)

    @property
    def default_measure(self) -> Literal["accuracy", "loss", "miou"]:
        """The metric by which a comparison ranks models."""
        return "loss" if self.class_count is None else "accuracy"

    @property
    def has_answers(self) -> bool:
        """True if each text has one answer of several tokens."""
        return False

    def with_size(self, size: Sequence[int]) -> Self:
        """Return the facts of samples of another size."""
        return replace(self, **dict(zip(self.size_fields, size, strict=True)))

    def build_inputs(self) -> tuple[Tensor, ...]:
        """Build the arguments of a model for one sample of zeros, as `Task.inputs` returns them."""
        return (torch.zeros(1, *self.shape),)

    def check(self) -> None:
        """Check facts that a file states.

        Raises:
            ValueError: A size is no positive whole number or is beyond all use, or a name is no
                text.
        """
        sizes, classes = self._list_sizes(), self.class_count
        for size in [*sizes, *([] if classes is None else [classes])]:
            if type(size) is not int or size < 1:
                raise ValueError(f"{size!r:.40} is no size of a sample and no number of classes")
        if math.prod(sizes) > MAX_SAMPLE:
            message = f"{math.prod(sizes):,} tokens or numbers, expected at most {MAX_SAMPLE:,}"
            raise ValueError(f"a sample has {message}")
        names = self.class_names
        if names and (len(names) != classes or not all(isinstance(name, str) for name in names)):
            raise ValueError(f"the names of {classes} classes are not so many texts")

    def _list_sizes(self) -> Sequence[int]:
        """Return the sizes of a sample, of which there are that many numbers."""
        return self.shape

    def check_tested(self, other: DataSpec, source: str) -> None:
        """Check that a model of these samples can read others.

        Args:
            other: The facts of the other samples.
            source: The name of their data source.

        Raises:
            OptionError: They differ in more than their size.
        """
        if type(other) is not type(self):
            raise OptionError("name", f"the model reads {self.noun}")
        for key in self.fixed_fields:
            theirs, ours = getattr(other, key), getattr(self, key)
            if theirs != ours:
                option = key if key in SOURCE_OPTIONS else ""
                message = f"{theirs} {key}, but the model was trained with {ours}"
                raise OptionError(option, message)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a checkpoint; `zoo.run.checkpoint` reads it."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def name_tokens(self, *inputs: Tensor) -> tuple[str, ...]:
        """Name the tokens of one sample for people, by the model's inputs [N, ...]."""
        return tuple(format_numbers(token.flatten().tolist()) for token in inputs[0])

    def place_tokens(self, *inputs: Tensor) -> tuple[Tensor | None, tuple[str, str]]:
        """Return where the tokens of one sample lie in a chart [N, 2], and the names of its axes.

        Args:
            inputs: The model's inputs [N, ...].

        Returns:
            NaN for padding; None if tokens are no points.
        """
        return None, ("", "")

    def collate(self, samples: Sequence[Any]) -> Any:
        """Make a batch of the samples of a dataset."""
        return default_collate([*samples])

    def arrange(self, batch: Any) -> Any:
        """Return a collated batch in the form that tasks read."""
        inputs, targets = batch
        return to_float32(inputs), torch.as_tensor(targets)

    def explain_sample(self, sample: Any) -> str:
        """Return why a sample of a dataset cannot be read in float32; empty if it can."""
        return ""

    def list_numberings(self, batch: Any, ignored: int) -> Iterator[Numbering]:
        """Yield the class and token numbers of a batch.

        Args:
            batch: The batch, as tasks read it.
            ignored: A target that the task ignores.
        """
        if self.class_count is not None:
            yield Numbering(torch.as_tensor(batch[-1]), self.class_count, "label")

    def explain_misfit(self, batch: Any, *, any_shape: bool = False) -> str:
        """Return how a batch of one sample differs from these facts; empty if it does not.

        Args:
            batch: The batch, as tasks read it.
            any_shape: Whether images may have other sides.
        """
        inputs = batch[0]
        shape, expected = tuple(inputs.shape[1:]), self.shape
        if any_shape:
            expected = (*expected[:1], *shape[1:])
        if shape != expected:
            return f"a sample has shape {shape}, not {expected}"
        return (
            "" if inputs.is_floating_point() else f"a sample is {inputs.dtype}, not floating point"
        )


@dataclass(frozen=True)
class ImageSpec(DataSpec):
    """Images [B, channels, height, width] with one label each."""

    noun: ClassVar[str] = "images"
    """The name of this kind of samples in messages."""
    unit: ClassVar[str] = "images"
    token_noun: ClassVar[str] = "patches"
    is_image: ClassVar[bool] = True
    size_fields: ClassVar[tuple[str, ...]] = ("height", "width")
    fixed_fields: ClassVar[tuple[str, ...]] = ("channels", "classes")
    sample_form: ClassVar[str] = "a sample is (float tensor [channels, height, width], label)"

    channels: int
    height: int
    width: int
    classes: int
    names: tuple[str, ...] = field(default=(), kw_only=True)
    """Names of the classes; empty if they have none."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.channels, *self.grid

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of pixels along each axis."""
        return self.height, self.width


@dataclass(frozen=True)
class VideoSpec(ImageSpec):
    """Clips [B, channels, frames, height, width] with one label each."""

    noun: ClassVar[str] = "videos"
    """The name of this kind of samples in messages."""
    unit: ClassVar[str] = "videos"

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
    unit: ClassVar[str] = "images with masks"
    target_unit: ClassVar[Literal["sample", "token", "pixel"]] = "pixel"
    sample_form: ClassVar[str] = (
        "a sample is (float tensor [channels, height, width], mask [height, width])"
    )

    @property
    def default_measure(self) -> Literal["accuracy", "loss", "miou"]:
        return "miou"

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "masks": True}

    def list_numberings(self, batch: Any, ignored: int) -> Iterator[Numbering]:
        hint = "; set task.ignore_index if it stands for no class"
        masks = torch.as_tensor(batch[-1])
        yield Numbering(masks, self.classes, "class", (IGNORE_INDEX, ignored), hint)

    def explain_misfit(self, batch: Any, *, any_shape: bool = False) -> str:
        if misfit := super().explain_misfit(batch, any_shape=any_shape):
            return misfit
        images, masks = batch[0], batch[-1]
        shape = tuple(masks.shape[1:])
        sides = images.shape[2:] if any_shape else self.grid
        if shape == sides and not masks.is_floating_point():
            return ""
        return f"a mask is {masks.dtype} {shape}, not integers {self.grid}"


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
class TokenSpec(DataSpec):
    """Texts of at most `length` tokens, int64 [B, N]: the base class of both kinds of them."""

    suffixes: ClassVar[tuple[str, ...]] = (".txt",)

    length: int
    vocabulary: Vocabulary

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    def build_inputs(self) -> tuple[Tensor, ...]:
        return (torch.zeros(1, self.length, dtype=torch.long),)

    def check_tested(self, other: DataSpec, source: str) -> None:
        vocabulary = other.token_vocabulary
        if vocabulary is None or vocabulary.to_dict() != self.vocabulary.to_dict():
            message = f"{source} has another vocabulary than the data of training"
            raise OptionError("name", f"{message}; choose text")
        super().check_tested(other, source)

    def to_dict(self) -> dict[str, Any]:
        return {"length": self.length, "vocabulary": self.vocabulary.to_dict()}

    def list_numberings(self, batch: Any, ignored: int) -> Iterator[Numbering]:
        yield Numbering(batch[0], len(self.vocabulary), "token", (PADDING,))
        yield from super().list_numberings(batch, ignored)

    def explain_misfit(self, batch: Any, *, any_shape: bool = False) -> str:
        inputs = batch[0]
        shape = tuple(inputs.shape[1:])
        if inputs.is_floating_point() or len(shape) != 1 or shape[0] > self.length:
            return f"a sample is {inputs.dtype} {shape}, not at most {self.length} integers"
        return ""


@dataclass(frozen=True)
class TextSpec(TokenSpec):
    """Windows of at most `length` tokens."""

    noun: ClassVar[str] = "text"
    """The name of this kind of samples in messages."""
    unit: ClassVar[str] = "tokens"
    target_unit: ClassVar[Literal["sample", "token", "pixel"]] = "token"
    sample_form: ClassVar[str] = (
        "a sample is an int64 tensor [N + 1], or a pair of inputs and targets [N]"
    )

    targets: Literal["every", "some", "answers"] = "every"
    """Targets of a window: every next token, some of them, or one answer of several tokens."""

    @property
    def default_measure(self) -> Literal["accuracy", "loss", "miou"]:
        return "loss" if self.targets == "every" else "accuracy"

    @property
    def has_answers(self) -> bool:
        return self.targets == "answers"

    def to_dict(self) -> dict[str, Any]:
        targets = {} if self.targets == "every" else {"targets": self.targets}
        return super().to_dict() | targets

    def arrange(self, batch: Any) -> TextBatch:
        """Return a batch of windows; [B, N + 1] becomes inputs and their next tokens."""
        # TensorDataset(tokens) has tuples of one tensor
        if isinstance(batch, list | tuple) and len(batch) == 1:
            (batch,) = batch
        if isinstance(batch, TextBatch):
            return batch
        if isinstance(batch, Tensor):
            return TextBatch(batch[:, :-1], batch[:, 1:])
        return TextBatch(*batch)

    def list_numberings(self, batch: Any, ignored: int) -> Iterator[Numbering]:
        yield from super().list_numberings(batch, ignored)
        yield Numbering(batch.targets, len(self.vocabulary), "target", (IGNORE_INDEX,))


@dataclass(frozen=True)
class TextClassificationSpec(TokenSpec):
    """Documents of at most `length` tokens, int64 [B, N] padded with -1, with one label each."""

    noun: ClassVar[str] = "labelled texts"
    """The name of this kind of samples in messages."""
    fixed_fields: ClassVar[tuple[str, ...]] = ("classes",)
    sample_form: ClassVar[str] = "a sample is (int64 tensor [N], label)"
    has_equal_shapes: ClassVar[bool] = False

    classes: int
    names: tuple[str, ...] = ()
    """Names of the classes; empty if they have none."""

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"classes": self.classes, "names": [*self.names]}

    def collate(self, samples: Sequence[Any]) -> Any:
        return pad_texts(samples)


@dataclass(frozen=True)
class PointSpec(DataSpec):
    """Sets of at most `length` points with features at real coordinates, and one target each.

    The target is a class or, without classes, a list of numbers to predict.
    """

    noun: ClassVar[str] = "points"
    """The name of this kind of samples in messages."""
    fixed_fields: ClassVar[tuple[str, ...]] = ("features", "axes", "outputs")
    suffixes: ClassVar[tuple[str, ...]] = (".npz", ".parquet")
    sample_form: ClassVar[str] = (
        "a sample is (features [N, F], coordinates [N, P], label or numbers [T])"
    )
    has_equal_shapes: ClassVar[bool] = False

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

    @property
    def shape(self) -> tuple[int, ...]:
        return self.length, self.features

    def build_inputs(self) -> tuple[Tensor, ...]:
        mask = torch.ones(1, self.length, dtype=torch.bool)
        return torch.zeros(1, *self.shape), torch.zeros(1, self.length, self.axes), mask

    def check(self) -> None:
        _check_points(self)
        super().check()

    def _list_sizes(self) -> Sequence[int]:
        return self.length, self.features, self.axes

    def check_tested(self, other: DataSpec, source: str) -> None:
        if type(other) is type(self) and (self.classes is None) != (other.class_count is None):
            targets = "numbers" if other.class_count is None else "classes"
            raise OptionError("", f"its targets are {targets}, and the model predicts other ones")
        super().check_tested(other, source)

    def name_tokens(self, *inputs: Tensor) -> tuple[str, ...]:
        """Name points [N] by their coordinates and features; padding has an empty name."""
        x, pos, mask = (part.tolist() for part in inputs)
        return tuple(
            f"{format_numbers(place)}: {format_numbers(features)}" if is_real else ""
            for features, place, is_real in zip(x, pos, mask, strict=True)
        )

    def place_tokens(self, *inputs: Tensor) -> tuple[Tensor | None, tuple[str, str]]:
        """Return the first two coordinates or, of one coordinate, it and the first feature."""
        x, pos, mask = inputs
        second, name = (pos[:, 1], "coordinate 2") if self.axes > 1 else (x[:, 0], "feature 1")
        places = torch.stack([pos[:, 0], second], dim=-1).double()
        return places.masked_fill(~mask[:, None].bool(), torch.nan), ("coordinate 1", name)

    def collate(self, samples: Sequence[Any]) -> PointBatch:
        return pad_points([_read_points(sample) for sample in samples])

    def arrange(self, batch: Any) -> Any:
        return batch

    def explain_sample(self, sample: Any) -> str:
        points = _read_points(sample)
        lost = explain_lost_differences(points.pos) if points.pos.ndim == 2 else ""
        return lost and f"{lost}; subtract a start"

    def explain_misfit(self, batch: Any, *, any_shape: bool = False) -> str:
        x, pos, target, count = batch[0], batch[1], batch[-1], batch[0].shape[1]
        widths = ("features", x, self.features), ("coordinates", pos, self.axes)
        for noun, values, width in widths:
            if values.shape[1:] != (count, width):
                return f"a sample has {noun} {tuple(values.shape[1:])}, not ({count}, {width})"
        if count > self.length:
            return f"a sample has {count} points, more than {self.length}"
        shape = tuple(target.shape[1:])
        if self.classes is not None:
            return "" if target.dim() == 1 else f"a label is {shape}, not a class"
        return "" if shape == (self.outputs,) else f"a target is {shape}, not ({self.outputs},)"


def _read_points(sample: Any) -> PointSample:
    return PointSample(*map(to_array, sample))


def to_array(value: Any) -> Any:
    """Return a tensor, a number or numbers as an array of numpy."""
    return value.numpy() if isinstance(value, Tensor) else np.asarray(value)


def to_float32(values: Tensor) -> Tensor:
    """Return numbers in the precision of the weights; integers unchanged, to be refused."""
    return values.float() if values.is_floating_point() else values


def format_numbers(numbers: Sequence[float]) -> str:
    """Write the first numbers of a token or a target for people."""
    shown = [f"{number:.4g}" for number in numbers[:MOST_NUMBERS]]
    return ", ".join(shown + ["\u2026"] * (len(numbers) > MOST_NUMBERS))


def list_kinds(reader: Any) -> tuple[type, ...]:
    """Return the kinds of samples that a model, a task or a metric reads.

    The annotation of the argument `spec` of its constructor declares them.
    """
    expected = get_type_hints(reader.__init__).get("spec", object)
    return get_args(expected) or (expected,)


def is_kind_of(spec: DataSpec, kinds: Sequence[type]) -> bool:
    """Return whether samples are of one of some kinds, as an annotation names them.

    Videos are images. Images with masks are no images with labels: what reads them names them.
    """
    if isinstance(spec, SegmentationSpec) and not {SegmentationSpec, DataSpec, object} & {*kinds}:
        return False
    return isinstance(spec, tuple(kinds))


def name_kinds(kinds: Sequence[type]) -> str:
    """Write kinds of samples for a message: images or points."""
    return join_words((kind.noun for kind in kinds if issubclass(kind, DataSpec)), "or")


def _check_points(spec: PointSpec) -> None:
    scales = [*spec.target_means, *spec.target_stds]
    if not all(type(scale) is float and math.isfinite(scale) for scale in scales):
        raise ValueError("means and deviations of targets are finite numbers")
    if len(spec.target_means) != len(spec.target_stds) or not all(
        deviation > 0 for deviation in spec.target_stds
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
    return spec.class_names or tuple(map(str, range(count)))


def check_fractions(val: float, test: float) -> None:
    """Check that fractions of val and test are positive and leave samples for training.

    Raises:
        OptionError: A fraction is not positive, or both together reach 1.
    """
    for key, fraction in (("val", val), ("test", test)):
        if not 0 < fraction < 1 or val + test >= 1:
            rule = "must be positive and leave samples for training"
            raise OptionError(key, f"fractions val {val} and test {test} {rule}")
