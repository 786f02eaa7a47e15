"""What every source of data has beside what Lightning asks of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
from torch import Tensor

from zoo.data.sampler import Share
from zoo.data.spec import Samples
from zoo.errors import OptionError


class Given(NamedTuple):
    """A batch made of files. `faults` says of each that could not be read what is wrong with it."""

    paths: tuple[
        Path, ...
    ]  # those that `batch` is made of: one for each image, or one for all windows of a text
    batch: Any  # images [B, C, H, W] as a model has them, or Windows
    faults: dict[Path, str]


class DataModule(L.LightningDataModule):
    """A source is made cheaply: `samples` needs no `setup`, so that a recipe can be checked. A source of text may read its
    text for it, and raise DataError. `digest` names the contents of data that is not fixed by its options.
    """

    name: str  # the registered one
    samples: Samples
    digest: str | None = None
    windows: str | None = (
        None  # how a test cuts a text into windows, in words; None where samples are given as they are
    )
    shown: str | None = (
        None  # how images are brought to the size of `samples`, in words; None where they are no images
    )

    @property
    def title(self) -> str:
        """The name of the source and, where there is one, the digest of its text."""
        return self.name if self.digest is None else f"{self.name} {self.digest}"

    @property
    def share(self) -> Share:
        """This process' share of each batch."""
        return (
            Share()
            if self.trainer is None
            else Share(self.trainer.global_rank, self.trainer.world_size)
        )

    @abstractmethod
    def loader(self, part: str) -> Iterable[Any]:
        """This process' share of the batches of train, val or test, once set up; those of train in the order of training.

        Those of train have an `order`.
        """

    def train_dataloader(self) -> Iterable[Any]:
        loader: Any = self.loader("train")
        loader.order.held = self.trainer is not None and bool(self.trainer.overfit_batches)  # type: ignore[attr-defined]
        return loader

    def val_dataloader(self) -> Iterable[Any]:
        return self.loader("val")

    def test_dataloader(self) -> Iterable[Any]:
        return self.loader("test")

    def pictured(self, images: Tensor) -> Tensor:
        """Images or clips [B, C, ...] as a model has them, for people: from 0, black, to 1, white.

        By default each is stretched from its darkest number to its brightest.
        """
        low, high = (
            end.unflatten(0, (-1, *[1] * (images.dim() - 1)))
            for end in images.flatten(1).aminmax(dim=1)
        )
        return (images - low) / (high - low).clamp(min=1e-6)

    @abstractmethod
    def count(self, part: str) -> int:
        """The number of samples in train, val or test, once set up."""

    def baselines(self) -> dict[str, float]:
        """test/loss of models that need no training, by name: what a trained one has to be compared to."""
        return {}

    def locate(self) -> None:
        """Raises DataError, or OptionError, where what `setup` would read is not there or not as it is said to be.

        Reads no more than the first row of each part.
        """
        return

    def adopt(self, samples: Samples) -> None:
        """Yield what a trained model knows: text is encoded with its vocabulary. Raises DataError where it cannot be."""
        return

    def read(self, paths: Sequence[Path], samples: Samples) -> Iterator[Given]:
        """Batches of files as the model of `samples` has those of val, without `setup`. Raises OptionError where it cannot."""
        raise OptionError("name", f"{self.name} makes its samples itself and reads none from files")
