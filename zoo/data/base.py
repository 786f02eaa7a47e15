"""The base class of data sources: what zoo needs of a source beside Lightning's data module."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
from torch import Tensor
from torch.utils.data import Dataset

from zoo.data.baselines import Baselines
from zoo.data.sampler import ProcessShare
from zoo.data.spec import DataSpec
from zoo.errors import OptionError


class FileBatch(NamedTuple):
    """A batch read from files, for `zoo predict`."""

    paths: tuple[Path, ...]
    """The files of the batch: one for each image, or one for all windows of a text."""
    batch: Any
    """Model inputs: images [B, C, H, W] or token windows."""
    errors: dict[Path, str]
    """Why files could not be read."""


@dataclass(frozen=True)
class Datasets:
    """The samples of a Python program, which no recipe can name."""

    splits: Mapping[str, Dataset[Any]]
    """train, val and test, or those of them that are needed."""
    spec: DataSpec | None = None
    """The facts of the samples. None: those that the model was trained with."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of samples. None: the way of the spec."""


class DataModule(L.LightningDataModule):
    """A source of samples, cheap to construct: files are read in `setup`.

    `spec` is known without `setup`, so that a recipe can be validated; a source of text may read
    its text for it.
    """

    name: str
    """The name it is registered under, set by `@register`."""
    spec: DataSpec
    digest: str | None = None
    """Names the contents of data that its options do not determine."""
    windowing: str | None = None
    """How evaluation cuts a text into windows, in words; None for other data."""
    resizing: str | None = None
    """How images are brought to the size of `spec`, in words; None for other data."""

    @property
    def title(self) -> str:
        """The name of the source and, if it has one, the digest of its contents."""
        return self.name if self.digest is None else f"{self.name} {self.digest}"

    @property
    def share(self) -> ProcessShare:
        """This process' share of each batch."""
        if self.trainer is None:
            return ProcessShare()
        return ProcessShare(self.trainer.global_rank, self.trainer.world_size)

    @abstractmethod
    def build_loader(self, split: str) -> Iterable[Any]:
        """Return this process' share of the batches of a split, after `setup`.

        The loader of train shuffles and has an `epoch_sampler`.

        Args:
            split: train, val or test.
        """

    def train_dataloader(self) -> Iterable[Any]:
        loader: Any = self.build_loader("train")
        trainer: Any = self.trainer
        loader.epoch_sampler.fixed_epoch = bool(trainer is not None and trainer.overfit_batches)
        return loader

    def val_dataloader(self) -> Iterable[Any]:
        return self.build_loader("val")

    def test_dataloader(self) -> Iterable[Any]:
        return self.build_loader("test")

    @abstractmethod
    def count_samples(self, split: str) -> int:
        """Return the number of samples of a split, after `setup`."""

    def denormalize(self, images: Tensor) -> Tensor:
        """Return model inputs [B, C, ...] as pictures from 0, black, to 1, white.

        By default each image is stretched from its minimum to its maximum.
        """
        shape = (-1, *[1] * (images.dim() - 1))
        low, high = (bound.view(shape) for bound in images.flatten(1).aminmax(dim=1))
        return (images - low) / (high - low).clamp(min=1e-6)

    def compute_baselines(self) -> Baselines:
        """Return what models must beat, {metric: {baseline: value}}; only after `fit` and `test`.

        By default there is nothing.
        """
        return {}

    def check_source(self) -> None:
        """Check that what `setup` will read exists, reading at most the first row of each split.

        Raises:
            DataError: Files, splits or columns are missing.
            OptionError: The data differ from what the options say.
        """
        return

    def adopt_spec(self, spec: DataSpec) -> None:
        """Take over the vocabulary and the classes that a model was trained with.

        Raises:
            DataError: The data cannot be encoded with that vocabulary.
            OptionError: The model was trained on samples of another kind.
        """
        return

    def adopt_datasets(self, datasets: Datasets) -> None:
        """Take the samples from a Python program.

        Raises:
            OptionError: The source has samples of its own.
        """
        problem = f"{self.name} has samples of its own, and datasets were passed too"
        raise OptionError("name", f"{problem}; leave data.name or the datasets out")

    def read_files(self, paths: Sequence[Path], spec: DataSpec) -> Iterator[FileBatch]:
        """Read files into batches, preprocessed as in evaluation; needs no `setup`.

        Args:
            paths: The files, in the order of the result.
            spec: What the model was trained on.

        Raises:
            OptionError: The source generates its samples, or the model reads another kind.
        """
        raise OptionError("name", f"{self.name} generates its samples and reads no files")
