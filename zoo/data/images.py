"""Your own images: folders of classes, parquet files, webdataset shards, or whatever else Hugging Face's `datasets` reads."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.base import DataModule, Given
from zoo.data.spec import ImageSpec as Facts
from zoo.data.spec import Samples
from zoo.data.tables import open_table
from zoo.data.tables.dataset import Corrupt, Rows, Some, SoundLoader, refuse_few
from zoo.data.tables.open_table import Parts
from zoo.data.tables.stream import Stream, StreamLoader
from zoo.data.vision import dataset
from zoo.data.vision.augmentation import Augmentation
from zoo.data.vision.dataset import (
    Decoded,
    Encoded,
    Finished,
    Reader,
    alone,
    pictures,
    refuse_others,
)
from zoo.data.vision.decode import Decoding, Size, sides
from zoo.errors import OptionError
from zoo.registry import Between, Count, register

log = logging.getLogger("zoo")
GIGABYTE = 1e9


@register
class Images(DataModule):
    """Images [B, channels, height, width] of `path`: a folder, a file or a glob of files, or `hub:owner/name`
    (`hub:owner/name:configuration` where it has several).

    `train` names a split; `val` and `test` name one each, or are shares of `train`. `image` and `label` name columns.
    Images are decoded, resized bicubically to `size`, that of a square or [height, width] (`crop`: until it is covered, then
    the centre; `exact`: each side to its own length), and then have
    `mean` taken off and are divided by `std`, in units of white; the loaders yield them as uint8, and the rest is done in
    batches on the device, where training augments them (`augment`). `classes` is only needed where labels are plain
    numbers; with it, nothing is read before `setup`. A split whose decoded images take up to `keep` gigabytes is decoded
    once and kept on disk; where `test` is a share of one, a test decodes that share alone. Up to a share of `skip` corrupt
    samples is skipped.

    The order is a function of (seed, epoch, index) alone, for any number of workers. With `stream` nothing is held whole: the
    order is then a function of (seed, epoch, buffer); each process reads all of it, with at most one worker, and decodes
    its share. A resumed run reads again, without decoding, what it has seen of its epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        path: str | None = None,
        train: str = "train",
        val: float | str = 0.1,
        test: float | str = "test",
        image: str = "image",
        label: str = "label",
        classes: Count | None = None,
        channels: Literal[1, 3] = 3,
        size: Size = 224,
        resize: Literal["crop", "exact"] = "crop",
        mean: tuple[float, ...] = (0.5,),
        std: tuple[float, ...] = (0.5,),
        batch_size: Count = 64,
        augment: Augmentation = Augmentation(),
        skip: Annotated[float, Between(0, 1)] = 0.0,
        keep: Annotated[float, Between(0)] = 1.0,
        stream: Stream | None = None,
        workers: Annotated[int, Between(0)] = 0,
    ) -> None:
        super().__init__()
        if path is None:
            raise OptionError("path", "missing: say where your images are")
        if classes is not None:
            refuse_few(classes)
        self.seed, self.path, self.batch_size, self.workers = seed, path, batch_size, workers
        self.split_of, self.columns, self.classes = (
            Parts(train, val, test),
            dataset.Columns(image, label),
            classes,
        )
        self.decoding, self.skip, self.keep, self.stream = (
            Decoding(sides(size), channels, resize),
            skip,
            keep,
            stream,
        )
        self.finish = Finished(channels, self.decoding.sides, mean, std, augment)
        self.split_of.streamed(stream is not None, workers)
        self.loaded: dict[str, Rows] = {}  # by split
        self.parts: dict[str, Some] = {}
        self.streamed: dict[str, StreamLoader] = {}

    @cached_property
    def samples(self) -> Facts:  # type: ignore[override]
        shape = self.decoding.shape
        if self.classes is not None:
            return Facts(*shape, self.classes)
        names = open_table.classes(
            self._table(open_table.opened(self.path, streaming=True), "train")
        )
        refuse_few(names)
        return Facts(*shape, len(names), names=names)

    @property
    def shown(self) -> str:  # type: ignore[override]
        return self.decoding.told

    def locate(self) -> None:
        open_table.located(self.path)

    def setup(self, stage: str) -> None:
        opened = open_table.opened(self.path, streaming=self.stream is not None)
        for part in ("train", "val") if stage == "fit" else ("test",):
            table = self._table(opened, part)
            if self.stream is not None:
                self.streamed[part] = self._streaming(table, part, self.stream)
            elif part not in self.parts:
                numbers = self.split_of.numbers(part, len(table), self.seed)
                self.parts[part] = Some(self._rows(table, part, numbers), numbers)

    def prepare_data(self) -> None:
        """On each node one process decodes, and the others find what it kept."""
        fn = None if self.trainer is None else self.trainer.state.fn
        if fn is not None and self.share.processes > 1:
            self.setup(fn.value)

    def on_after_batch_transfer(
        self, batch: tuple[Tensor, Tensor], dataloader_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Batches as a model has them; those of training are augmented, and may have shares [B, classes] for labels."""
        trainer, classes = self.trainer, self.samples.classes
        if trainer is None:
            return self.finish(*batch, training=False, classes=classes)
        number = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        with alone(self.seed, self.share.rank, trainer.current_epoch, number):
            images, labels = self.finish(*batch, training=bool(trainer.training), classes=classes)
        return trainer.precision_plugin.convert_input(images), labels

    def read(self, paths: Sequence[Path], samples: Samples) -> Iterator[Given]:
        refuse_others(samples, self.decoding.channels)

        def finished(given: Given) -> Given:
            images, _ = self.finish(given.batch, torch.empty(0), training=False, classes=0)
            return given._replace(batch=images)

        return map(finished, pictures(paths, self.decoding, self.batch_size, self.workers))

    def pictured(self, images: Tensor) -> Tensor:
        return self.finish.undone(images)

    def count(self, part: str) -> int:
        return self.streamed[part].counted if part in self.streamed else len(self.parts[part])

    def _table(self, opened: Mapping[str, Any], part: str) -> Any:
        return dataset.split(opened, self.split_of.split(part), self.columns, self.path)

    def _rows(self, table: Any, part: str, numbers: NDArray[np.int64]) -> Rows:
        """What holds the samples of a part. The shares of another seed are other rows of the same split: training has all of
        it decoded, once for all seeds. A test at many sizes has only its own.
        """
        split = self.split_of.split(part)
        if part == "test":
            return self._held(table, split, numbers)
        if split not in self.loaded:
            self.loaded[split] = self._held(table, split, np.arange(len(table)))
        return self.loaded[split]

    def _held(self, table: Any, split: str, numbers: NDArray[np.int64]) -> Rows:
        encoded = Encoded(table, self._reader(f"{self.path}, {split}"))
        if len(numbers) * math.prod(self.decoding.shape) > self.keep * GIGABYTE:
            return encoded
        decoded = Decoded(encoded, numbers)
        if decoded.problem:
            log.info(decoded.problem)
        return decoded

    def _reader(self, title: str) -> Reader:
        return Reader(self.decoding, self.samples.classes, title)

    def _streaming(self, table: Any, part: str, stream: Stream) -> StreamLoader:
        reader = self._reader(f"{self.path}, stream of {part}")
        corrupt = Corrupt(self.skip, stream.samples, self.share.processes)
        return StreamLoader(
            table,
            reader,
            self.batch_size,
            self.workers,
            corrupt,
            self.share,
            seed=self.seed,
            stream=stream if part == "train" else None,
        )

    def loader(self, part: str) -> SoundLoader | StreamLoader:
        if part in self.streamed:
            return self.streamed[part]
        pictures = self.parts[part]
        loader = SoundLoader(
            pictures, self.batch_size, self.seed, self.workers, self.share, training=part == "train"
        )
        loader.corrupt = Corrupt(self.skip, len(pictures), self.share.processes)
        loader.pin_memory = torch.cuda.is_available()
        return loader
