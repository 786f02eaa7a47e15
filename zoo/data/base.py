"""The base class of data sources, which extends Lightning's data module."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.data.baselines import Baselines
from zoo.data.class_counts import ClassCounts, check_counts
from zoo.data.sampler import ProcessShare
from zoo.data.spec import IGNORE_INDEX, DataSpec, name_classes
from zoo.errors import OptionError

SPLITS = ("train", "val", "test")


class FileBatch(NamedTuple):
    """A batch that is read from files, for `zoo predict`."""

    paths: tuple[Path, ...]
    """The file of each image or set of points, or one for all windows of its tokens."""
    batch: Any
    """Model inputs: images [B, C, H, W], token windows, or the arguments of a model of points."""
    errors: dict[Path, str]
    """The files that could not be read, with the reason."""
    rows: tuple[int, ...] = ()
    """The row of each sample in its file; empty if a file is a sample."""


@dataclass(frozen=True)
class Datasets:
    """The samples of a Python program, which no recipe can name."""

    splits: Mapping[str, Dataset[Any]]
    """The data sets train, val and test, or those that are needed."""
    spec: DataSpec | None = None
    """The facts of the samples. None: those of the model's training data."""
    collate: Callable[[list[Any]], Any] | None = None
    """Collates samples into a batch. None: the default for the spec."""


class DataModule(L.LightningDataModule):
    """The base class of data sources. Construction is cheap; files are read in `setup`.

    `spec` is known without `setup`, so that a recipe can be validated. A text source may have to
    read its text for it.
    """

    name: str
    """The registered name, set by `@register`."""
    spec: DataSpec
    patch_size: int | None = None
    """Side in pixels of the patches of the model that reads the images, if it has any."""
    dtype: torch.dtype = torch.float32
    """Precision in which the model reads samples."""
    prefetch_factor: int | None = None
    """Number of batches that each worker loads in advance. None: as torch does."""
    ignored_target: int = IGNORE_INDEX
    """A target that the task ignores, in addition to -100."""
    digest: str | None = None
    """Digest of the contents, for data that the options do not determine."""
    has_equal_shares: bool = True
    """True if all processes have as many samples of each training batch."""
    has_full_windows: bool = False
    """True if each token of every window to train on has a target."""
    has_divisible_windows: bool = False
    """True if windows are of text that goes on, so that parts of a window are windows."""
    parts: int = 1
    """Number of equal parts of each window that are the rows of a batch, in training."""
    windowing: str | None = None
    """Description of how evaluation divides text into windows. None for other data."""
    resizing: str | None = None
    """Description of how images are resized to the size of `spec`. None for other data."""

    @property
    def title(self) -> str:
        """The name of the source and, if it has one, the digest of its contents."""
        return self.name if self.digest is None else f"{self.name} {self.digest}"

    @property
    def share(self) -> ProcessShare:
        """The part of each batch that this process loads."""
        # Lightning attaches the trainer. Without one there is a single process.
        if self.trainer is None:
            return ProcessShare()
        return ProcessShare(self.trainer.global_rank, self.trainer.world_size)

    @abstractmethod
    def build_loader(self, split: str) -> Iterable[Any]:
        """Return a loader of this process' share of the batches of a split, after `setup`.

        The loader of train shuffles and has an `epoch_sampler`, whose `global_batch_size` is the
        number of samples in a batch over all processes, and whose `is_at_end` is true when the last
        batch of an epoch was yielded, if that has fewer batches than planned.

        Args:
            split: train, val or test.
        """

    def train_dataloader(self) -> Iterable[Any]:
        # With overfit_batches, every epoch must repeat the same samples.
        loader = self._build_device_loader("train")
        trainer: Any = self.trainer
        loader.epoch_sampler.fixed_epoch = bool(trainer is not None and trainer.overfit_batches)
        return loader

    def val_dataloader(self) -> Iterable[Any]:
        return self._build_device_loader("val")

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Tell Lightning about the last batch of an epoch that ends early.

        It knows only the planned number, and would neither use the gradients of the last batches
        that it accumulates nor validate.
        """
        trainer: Any = self.trainer
        if trainer is not None and trainer.training:
            progress = trainer.fit_loop.epoch_loop.batch_progress
            progress.is_last_batch |= trainer.train_dataloader.epoch_sampler.is_at_end
        return self.divide_windows(batch)

    def divide_windows(self, batch: Any) -> Any:
        """Divide the windows of a batch [B, N] into rows [B parts, N / parts]."""
        if self.parts == 1:
            return batch
        rows = [None if one is None else one.reshape(len(one) * self.parts, -1) for one in batch]
        return type(batch)(*rows)

    def test_dataloader(self) -> Iterable[Any]:
        return self._build_device_loader("test")

    def _build_device_loader(self, split: str) -> Any:
        """Build the loader of a split for the device that Lightning trains on."""
        loader: Any = self.build_loader(split)
        # From pinned memory batches are copied to a GPU while it computes. A CPU has no use for it.
        strategy = getattr(self.trainer, "strategy", None)
        if strategy is not None and strategy.root_device.type == "cuda":
            loader.pin_memory = True
        if self.prefetch_factor is not None:
            loader.prefetch_factor = self.prefetch_factor
        return loader

    def set_prefetch_factor(self, factor: int | None, workers: int) -> None:
        """Set the number of batches that each worker loads in advance; None: as torch does.

        Raises:
            OptionError: There are no workers.
        """
        if factor is not None and not workers:
            message = "no worker loads batches in advance"
            raise OptionError("prefetch_factor", f"{message}; set workers, or leave it out")
        self.prefetch_factor = factor

    @abstractmethod
    def count_samples(self, split: str) -> int:
        """Return the number of samples of a split, after `setup`."""

    def denormalize(self, images: Tensor) -> Tensor:
        """Return model inputs [B, C, ...] as images from 0 (black) to 1 (white).

        By default each image is scaled from its minimum to its maximum.
        """
        shape = (-1, *[1] * (images.dim() - 1))
        low, high = (bound.view(shape) for bound in images.flatten(1).aminmax(dim=1))
        return (images - low) / (high - low).clamp(min=1e-6)

    def compute_baselines(self) -> Baselines:
        """Return simple baselines, {metric: {baseline: value}}, after `setup` for fit and test."""
        return self.fit_baselines()(self)

    def fit_baselines(self) -> Callable[[Self], Baselines]:
        """Fit simple baselines on train and val, after `setup` for fit.

        By default there are none.

        Returns:
            A function that scores them on the test split of the same source, possibly under
            another condition, after its `setup` for test. It resizes images of another size to the
            size of these ones.
        """
        return lambda tested: {}

    def check_source(self) -> None:
        """Check that the data of `setup` exist, reading at most the first row of each split.

        Raises:
            DataError: Files, splits or columns are missing.
            OptionError: The data contradict the options.
        """
        return

    def count_classes(self, split: str) -> ClassCounts | None:
        """Count the targets of each class in the samples of a split, or in some of them.

        It needs no `setup`. By default, and for streams, nothing is counted.

        Args:
            split: train, val or test.

        Raises:
            DataError: The samples cannot be read.
        """
        return None

    def check_classes(self, split: str) -> None:
        """Check that the samples of a split have the classes of `spec`, where they are counted.

        A class without a target, and a high share of targets without a class, are logged.

        Args:
            split: train, val or test.

        Raises:
            OptionError: A class has no target, because a number of files means no class by default.
            DataError: All targets of training have the same class, or none has one.
        """
        counts = self.count_classes(split)
        if counts is not None:
            check_counts(counts, name_classes(self.spec, len(counts.classes)), split)

    def check_training(self) -> None:
        """Check options that only a training follows.

        Raises:
            OptionError: One does not fit the others.
        """
        return

    def adopt_spec(self, spec: DataSpec) -> None:
        """Use the vocabulary and the classes of a trained model.

        Raises:
            DataError: The data cannot be encoded with that vocabulary.
            OptionError: The model was trained on another kind of samples.
        """
        return

    def adopt_datasets(self, datasets: Datasets) -> None:
        """Use the data sets of a Python program.

        Raises:
            OptionError: The source has its own samples.
        """
        message = f"{self.name} has its own samples, and datasets were passed too"
        raise OptionError("name", f"{message}; leave data.name or the datasets out")

    def read_files(self, paths: Sequence[Path], spec: DataSpec) -> Iterator[FileBatch]:
        """Read files into batches that are preprocessed as in evaluation. It needs no `setup`.

        Args:
            paths: The files, in the order of the result.
            spec: The facts of the model's training data.

        Raises:
            OptionError: The source generates its samples, or the model reads another kind.
        """
        raise OptionError("name", f"{self.name} generates its samples and reads no files")
