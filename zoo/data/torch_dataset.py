"""Datasets of a Python program, which `zoo.fit` and `zoo.evaluate` take as `data`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, default_collate

from zoo.data.base import SPLITS, DataModule, Datasets
from zoo.data.class_counts import ClassCounts, count_drawn, count_samples
from zoo.data.finite import find_not_finite
from zoo.data.padding import stack_padded
from zoo.data.patch_rows import check_aspect, fit_grid, place_patches
from zoo.data.sampler import Key, ResumableLoader
from zoo.data.spec import IGNORE_INDEX, DataSpec, TextBatch, get_sides, to_array, to_float32
from zoo.data.vision import Size
from zoo.errors import DataError, OptionError
from zoo.options import Between, Count
from zoo.registry import register

ABSENT = (
    "the samples were datasets of a Python program, which a recipe cannot hold; "
    "pass them again in Python: zoo.fit(..., data=...), zoo.evaluate(run, data=...)"
)


@register
class TorchDataset(DataModule):
    """Samples of datasets that a Python program passes; a recipe cannot repeat such a run.

    Images are float tensors [channels, height, width] with a label each; clips have frames before
    height. `size`, the side of a square or [height, width], resizes images bilinearly. With
    `aspect` keep, images and their masks have any shape: they get as many patches of the model as
    `size` has, or less, and without `size` their sides are multiples of a patch; `pack` is the
    number of patches in a row that several images share. Text samples
    are int64 [N + 1], where each token is predicted from earlier ones, or pairs of inputs and
    targets [N]; samples for text classification are int64 [N] with a label each, and sets of points
    are features [N, F], coordinates [N, P] and a label or numbers [T]. `description` has no effect.
    Without workers, samples may be random: they may draw from torch's generator, whose state is
    part of checkpoints.
    """

    def __init__(
        self,
        seed: int,
        *,
        description: str = "",
        size: Size | None = None,
        aspect: Literal["fixed", "keep"] = "fixed",
        pack: Count | None = None,
        batch_size: Count = 64,
        workers: Annotated[int, Between(0)] = 0,
    ) -> None:
        super().__init__()
        check_aspect(aspect == "keep", pack)
        self.keeps_aspect, self.pack = aspect == "keep", pack
        self.seed, self.batch_size, self.workers = seed, batch_size, workers
        self.sides = None if size is None else get_sides(size)
        self.description = description
        self.datasets: Datasets | None = None

    @property
    def title(self) -> str:
        return f"{self.name} {self.description}".strip()

    @property
    def resizing(self) -> str | None:  # type: ignore[override]
        if self.keeps_aspect:
            return "in its own shape, to as many patches as the size has, or less, bilinearly"
        return "each side resized to its own length, bilinearly" if self.sides else None

    @property
    def spec(self) -> DataSpec:  # type: ignore[override]
        spec = self._get_datasets().spec
        if spec is None:
            message = "the datasets come without a spec"
            raise DataError(f"data: {message}; pass spec=zoo.ImageSpec(...) or another one")
        _check_given(spec)
        is_resizable = spec.is_image and len(spec.grid) == 2
        if self.keeps_aspect and not is_resizable:
            raise OptionError("aspect", f"{spec.noun} have no shape to keep; leave it out")
        # Resizing changes the size of the samples, and therefore the spec.
        if self.sides is None:
            return spec
        if not is_resizable:
            raise OptionError("size", f"{spec.noun} are not resized; leave it null")
        return spec.with_size(self.sides)

    def adopt_datasets(self, datasets: Datasets) -> None:
        self.datasets = datasets

    def adopt_spec(self, spec: DataSpec) -> None:
        if self._get_datasets().spec is None:
            self.datasets = replace(self._get_datasets(), spec=spec)

    def check_source(self) -> None:
        for split in SPLITS:
            self._build_samples(split).check_first()

    def count_classes(self, split: str) -> ClassCounts | None:
        """Count the targets of some samples, or of all if they are read in seconds.

        Numbers to predict and probabilities of classes are not counted.
        """
        samples, place, ignored = self._build_samples(split), f"data, {split}", self.ignored_target
        if samples.read_targets([0]).is_floating_point():
            return None
        spec, total = self.spec, len(samples)
        if spec.target_unit == "token":
            # of tokens it only matters whether they have targets
            counts, read = count_drawn(total, samples.count_targets, {1})
            return ClassCounts(
                targets=counts[1],
                ignored={IGNORE_INDEX: counts[0]} if counts[0] else {},
                unit="token",
                read=read,
                total=total,
                place=place,
            )
        classes = spec.class_count
        assert classes is not None
        wanted = {*range(classes)} - {ignored}
        counts, read = count_drawn(total, samples.count_targets, wanted)
        if spec.target_unit == "sample":
            return count_samples(counts, classes, read, total, place)
        by_class = tuple(0 if number == ignored else counts[number] for number in range(classes))
        return ClassCounts(
            targets=sum(by_class),
            classes=by_class,
            ignored={
                number: counts[number] for number in (IGNORE_INDEX, ignored) if counts[number]
            },
            unit="pixel",
            excluded=ignored,
            read=read,
            total=total,
            place=place,
        )

    def setup(self, stage: str) -> None:
        self._get_datasets()

    def build_loader(self, split: str) -> ResumableLoader:
        samples = self._build_samples(split)
        is_training = split == "train"
        return ResumableLoader(
            samples, self.batch_size, self.seed, self.workers, self.share, training=is_training
        )

    def count_samples(self, split: str) -> int:
        return len(self._build_samples(split))

    def _get_datasets(self) -> Datasets:
        if self.datasets is None:
            raise DataError(f"data {self.name}: {ABSENT}")
        return self.datasets

    def _build_samples(self, split: str) -> SampleBatches:
        datasets = self._get_datasets()
        if split not in datasets.splits:
            splits = ", ".join(datasets.splits) or "none"
            raise DataError(f"data {self.name}: there is no dataset {split}, but {splits}")
        samples = SampleBatches(
            split, datasets, self.spec, self.sides, self.ignored_target, self.dtype
        )
        if self.keeps_aspect:
            if datasets.collate is not None:
                message = "the loaders have a collate function of their own"
                raise DataError(f"data: {message}; pass their datasets, or leave data.aspect out")
            samples.shaping = Shaping(self.patch_size or 1, self.sides, self.pack)
        return samples


@dataclass(frozen=True)
class Shaping:
    """How images of several shapes become a batch."""

    patch: int
    """Side of a patch in pixels."""
    sides: tuple[int, int] | None
    """Height and width whose number of patches is the most of an image. None: images stay as they
    are."""
    pack: int | None
    """Number of patches in a row that several images share. None: a row for each."""

    def build_batch(self, samples: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        """Return images [B, C, H, W] in upper left corners, their rows, and labels or masks."""
        images, targets = (
            [array.numpy() for array in column] for column in zip(*samples, strict=True)
        )
        grids = [(array.shape[-2] // self.patch, array.shape[-1] // self.patch) for array in images]
        rows = (array for array in place_patches(grids, pack=self.pack) if array is not None)
        # Masks are padded as images are, with pixels that have no class.
        is_mask = targets[0].ndim == 2
        labels = stack_padded(targets, IGNORE_INDEX) if is_mask else torch.as_tensor(targets)
        return stack_padded(images, 0), *rows, labels

    def resize(self, image: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Resize an image [C, H, W] and its mask [H, W], if the target is one.

        Raises:
            ValueError: Images are not resized, and a side is no multiple of a patch.
        """
        height, width = image.shape[-2:]
        if self.sides is None:
            if height % self.patch or width % self.patch:
                message = f"{height} x {width} pixels, and a patch has {self.patch}"
                raise ValueError(f"{message}; set data.size, which resizes images")
            return image, target
        most = math.prod(side // self.patch for side in self.sides)
        rows, columns = fit_grid(height, width, most)
        sides = (rows * self.patch, columns * self.patch)
        resized = F.interpolate(
            image[None], sides, mode="bilinear", align_corners=False, antialias=True
        )[0]
        if target.dim() == 2:
            # classes have no mean: a pixel takes that of the nearest one
            target = F.interpolate(target[None, None].float(), sides).long()[0, 0]
        return resized, target


class SampleBatches(Dataset[Any]):
    """The samples of one dataset, fetched by batches of keys in the form that tasks read."""

    shaping: Shaping | None = None
    """How images of several shapes become a batch. None: they have one shape."""

    def __init__(
        self,
        split: str,
        datasets: Datasets,
        spec: DataSpec,
        sides: tuple[int, int] | None,
        ignored: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.split, self.spec, self.sides = split, spec, sides
        self.ignored, self.dtype = ignored, dtype
        self.samples, self.collate = datasets.splits[split], datasets.collate

    def __len__(self) -> int:
        try:
            return len(self.samples)  # type: ignore[arg-type]
        except TypeError:
            message = "a dataset needs a length and an index; a stream has none"
            raise DataError(f"data, {self.split}: {message}") from None

    def __getitems__(self, keys: Sequence[Key]) -> Any:
        # Only the index of a key matters: such a dataset has no seed of its own.
        numbers = [key[1] if isinstance(key, tuple) else key for key in keys]
        batch = self._fetch(numbers)
        # A class that does not exist would end training within a kernel, which names no sample.
        for number, message in self._list_unknown(numbers, batch):
            raise DataError(f"data, {self.split}, sample {number}: {message}")
        return batch

    def _check_finite(self, numbers: Sequence[int], batch: Sequence[Any]) -> None:
        """Check that samples are finite in the precision in which a model reads them.

        Args:
            numbers: The numbers of the samples.
            batch: Their parts, as tensors [B, ...].

        Raises:
            DataError: A number is not; the message names its sample and place.
        """
        for item, values in enumerate(batch):
            # rows that images share belong to no single sample
            if not isinstance(values, Tensor) or len(values) != len(numbers):
                continue
            if wrong := find_not_finite(values, self.dtype):
                row, *index = wrong.index
                place = f"item {item}{f' at {index}' if index else ''}"
                sample = f"data, {self.split}, sample {numbers[row]}"
                raise DataError(f"{sample}, {place}: {wrong.problem}")

    def read_targets(self, numbers: Sequence[int]) -> Tensor:
        """Return the labels, masks or next tokens of samples."""
        batch = self.__getitems__(numbers)
        return batch.targets if isinstance(batch, TextBatch) else torch.as_tensor(batch[-1])

    def count_targets(self, numbers: Sequence[int]) -> Counter[int]:
        """Count the classes in samples; of text, the tokens with a target (1) and without (0)."""
        targets = self.read_targets(numbers)
        if self.spec.target_unit == "token":
            targets = (targets != IGNORE_INDEX).long()
        values, counts = targets.unique(return_counts=True)
        return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def _fetch(self, numbers: Sequence[int]) -> Any:
        """Return the batch of these samples."""
        samples = [self.samples[number] for number in numbers]
        # Images of one shape only need to be stacked.
        if self.shaping is not None:
            return self.shaping.build_batch([*self._resize_samples(numbers, samples)])
        if self.collate is not None:
            batch = self.collate(samples)
            self._check_finite(numbers, batch)
        elif self.spec.has_equal_shapes:
            batch = self.spec.collate(samples)
            self._check_finite(numbers, batch)
        else:
            for number, sample in zip(numbers, samples, strict=True):
                self._check_sample(number, sample)
            batch = self.spec.collate(samples)
        batch = self.spec.arrange(batch)
        return batch if self.sides is None else self._resize(*batch)

    def _check_sample(self, number: int, sample: Any) -> None:
        """Check a sample before it is padded. Raises DataError."""
        parts = [np.asarray(to_array(part), np.float64)[None] for part in sample]
        self._check_finite([number], [*map(torch.from_numpy, parts)])
        if misfit := self.spec.explain_sample(sample):
            raise DataError(f"data, {self.split}, sample {number}: {misfit}")

    def _resize(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Resize images [B, C, H, W] and their masks [B, H, W], if the targets are some."""
        assert self.sides is not None
        if self.spec.target_unit == "pixel":
            # classes have no mean: a pixel takes that of the nearest one
            targets = F.interpolate(targets[:, None].float(), self.sides).long()[:, 0]
        images = F.interpolate(
            images, size=self.sides, mode="bilinear", align_corners=False, antialias=True
        )
        return images, targets

    def _resize_samples(
        self, numbers: Sequence[int], samples: Sequence[Any]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images of several shapes and their targets. Raises DataError for one that fails."""
        assert self.shaping is not None
        for number, (image, target) in zip(numbers, samples, strict=True):
            image, target = torch.as_tensor(image), torch.as_tensor(target)
            self._check_finite([number], (image[None], target[None]))
            try:
                yield self.shaping.resize(to_float32(image), target)
            except ValueError as error:
                raise DataError(f"data, {self.split}, sample {number}: {error}") from None

    def _list_unknown(self, numbers: Sequence[int], batch: Any) -> Iterator[tuple[int, str]]:
        """Yield the number of each sample with a class or token that does not exist, and why."""
        for values, count, noun, ignored, hint in self.spec.list_numberings(batch, self.ignored):
            # check_first refuses other shapes and types with a description of samples
            if values.is_floating_point() or len(values) != len(numbers):
                continue
            bad = (values < 0) | (values >= count)
            for excluded in ignored:
                bad &= values != excluded
            for row in bad.view(len(bad), -1).any(1).nonzero().flatten().tolist():
                value = int(values[row][bad[row]].flatten()[0])
                message = f"{noun} {value}, but there are {count}, counted from 0"
                yield numbers[row], f"{message}{hint}"

    def check_first(self) -> None:
        """Check the first sample against the spec.

        Raises:
            DataError: It cannot be read, or differs from the spec.
        """
        if not len(self):
            raise DataError(f"data, {self.split}: the dataset is empty")
        # Anything may go wrong in a user's dataset; these errors mean samples of another form.
        try:
            batch = self.__getitems__([0])
            _inputs, _targets, *_ = batch
        except (TypeError, ValueError, AttributeError) as error:
            summary = (str(error).splitlines() or [type(error).__name__])[0]
            misfit = f"a sample cannot be read, {summary}; {self.spec.sample_form}"
            raise DataError(f"data, {self.split}: {misfit}") from None
        misfit = self.spec.explain_misfit(batch, any_shape=self.shaping is not None)
        if misfit:
            raise DataError(f"data, {self.split}: {misfit}; {self.spec.sample_form}")


def _check_given(spec: DataSpec) -> None:
    """Check a spec that a program passes.

    Raises:
        DataError: It describes no samples.
    """
    # protocols are not checked when a spec is made
    vocabulary = getattr(spec, "vocabulary", None)
    if hasattr(spec, "vocabulary") and not hasattr(vocabulary, "encode"):
        example = "zoo.data.corpus.tokenizer.Words(('yes', 'no'))"
        message = f"expected a vocabulary, such as {example}, got {vocabulary!r:.40}"
        raise DataError(f"data: the `vocabulary` of the spec: {message}")
    try:
        spec.check()
    except ValueError as error:
        raise DataError(f"data: the spec: {error}") from None


def collect_datasets(data: Any, spec: DataSpec | None = None) -> Datasets:
    """Return the datasets in the argument `data` of a user.

    Args:
        data: {"train": dataset, "val": ..., "test": ...}; a pair (train, val), whose second is also
            the test set; three datasets; or a Lightning data module with loaders of datasets.
        spec: The facts of the samples. None: the attribute `spec` of `data`, if it has one.

    Raises:
        OptionError: `data` is none of these.
    """
    spec = spec or getattr(data, "spec", None)
    if isinstance(data, DataModule):
        message = "it is a data source of zoo; name it in the recipe instead: data.name"
        raise OptionError("data", message)
    if isinstance(data, Mapping):
        if unknown := [str(name) for name in data if name not in SPLITS]:
            raise OptionError("data", f"unknown split {', '.join(unknown)}; {', '.join(SPLITS)}")
        return Datasets(dict(data), spec)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return Datasets(dict(zip(SPLITS, (*data, data[-1]), strict=False)), spec)
    # A Lightning data module is recognized by its methods.
    if callable(getattr(data, "test_dataloader", None)):
        return _read_data_module(data, spec)
    message = f"expected datasets by split or a data module, got {type(data).__name__}"
    raise OptionError("data", f"{message}; write data={{'train': ..., 'val': ..., 'test': ...}}")


def _read_data_module(data: Any, spec: DataSpec | None) -> Datasets:
    """Return the datasets and the collate function of a data module's loaders."""
    # Lightning calls these hooks in the same order.
    data.prepare_data()
    for stage in ("fit", "test"):
        data.setup(stage)
    loaders = {split: getattr(data, f"{split}_dataloader")() for split in SPLITS}
    if not all(isinstance(loader, DataLoader) for loader in loaders.values()):
        raise OptionError("data", "expected one DataLoader of torch for each split of the module")
    collate = loaders["train"].collate_fn
    datasets = {split: loader.dataset for split, loader in loaders.items()}
    return Datasets(datasets, spec, None if collate is default_collate else collate)


def describe_datasets(datasets: Datasets) -> str:
    """Return the types and lengths of datasets as text, for the recipe of a run."""
    parts = []
    for split, dataset in datasets.splits.items():
        count = len(dataset) if hasattr(dataset, "__len__") else "stream"
        parts.append(f"{split} {type(dataset).__name__} {count}")
    return ", ".join(parts)
