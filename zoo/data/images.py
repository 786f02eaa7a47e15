"""Your own images: class folders, Parquet files, WebDataset shards, or a dataset of the Hub."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.base import FileBatch
from zoo.data.baselines import Baselines, draw_numbers, score_majority
from zoo.data.cache import CacheEntry, load_or_make
from zoo.data.patch_rows import check_aspect
from zoo.data.random_crop import RandomCrop
from zoo.data.spec import DataSpec, ImageSpec, get_sides
from zoo.data.tables.labelled_table import (
    FetchesRows,
    LabelledTable,
    LabelledTableOptions,
    RowBatch,
    SplitTableOptions,
    TableRows,
    check_classes,
    list_declared_classes,
    read_label,
)
from zoo.data.tables.open_table import (
    HUB,
    MIXED_TYPE,
    TEXT_TYPES,
    find_files,
    open_tables,
    rename_columns,
    select_split,
)
from zoo.data.vision import (
    MAX_MEGAPIXELS,
    RESIZING,
    Augmentation,
    ImageAccess,
    ImageDecoder,
    ImageTransform,
    Size,
    check_reads_images,
    isolate_rng,
    read_image_files,
)
from zoo.errors import DataError, OptionError
from zoo.options import Between, Count
from zoo.packages import explain_imports
from zoo.registry import register
from zoo.utils import collect_damage

log = logging.getLogger("zoo")

GIGABYTE = 1e9
LOCATION_COLUMNS = ("__url__", "__key__")
"""The columns in which WebDataset names a shard, and a sample in it."""
PIXELS_VERSION = 2
"""Raised when the same file is decoded to other pixels, so that no older ones are read again."""
CHUNK = 1000
"""Number of rows that are decoded together."""


class PictureOptions(SplitTableOptions, total=False):
    """Options of pictures with any targets, which a source hands to `Images`."""

    allow_remote: bool
    channels: Literal[1, 3]
    size: Size
    resize: Literal["crop", "exact"]
    aspect: Literal["fixed", "keep"]
    pack: Count | None
    max_megapixels: Annotated[float, Between(0)]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@register
class Images(LabelledTable):
    """Images [B, channels, height, width] of `path`: a folder, a file or a glob of files.

    `hub:owner/name` or `hub:owner/name:configuration` is a dataset of the Hub. `train` names a
    split; `val` and `test` each name a split or are fractions of `train`. `image` and `label` name
    columns. Images are decoded, resized bicubically to `size`, which is the side of a square or
    [height, width] (`crop`: resized to cover it, then cropped at the centre; `exact`: each side
    resized to its own length), and normalized by `mean` and `std`, in units of white. Loaders yield
    uint8; normalization and augmentation (`augment`) run in batches on the device. `classes` is
    required only if labels are plain integers; with it, nothing is read before `setup`. A split
    whose decoded images take up to `keep` gigabytes is decoded once and cached on disk; if `test`
    is a fraction, a test decodes only that fraction. Up to a fraction `skip` of samples may be
    corrupt and are skipped; an image of more than `max_megapixels` million pixels counts as
    corrupt. A table may name files below its folder and, with `allow_remote`, also addresses.

    With `aspect` keep, each image keeps its shape, and is resized to as many patches of the model
    as `size` has, or less. Batches are padded; `pack` is the number of patches in a row that
    several images share.

    The order depends only on (seed, epoch, index), for any number of workers. With `stream` no
    table is held in memory, and the order depends on (seed, epoch, buffer). Each process then reads
    everything, with at most one worker, and decodes its share. A resumed run reads the seen part of
    its epoch again, without decoding it.
    """

    kind: ClassVar[type[ImageSpec]] = ImageSpec
    """The facts that its samples have."""

    def __init__(
        self,
        seed: int,
        *,
        image: str = "image",
        allow_remote: bool = False,
        classes: Count | None = None,
        channels: Literal[1, 3] = 3,
        size: Size = 224,
        resize: Literal["crop", "exact"] = "crop",
        aspect: Literal["fixed", "keep"] = "fixed",
        pack: Count | None = None,
        max_megapixels: Annotated[float, Between(0)] = MAX_MEGAPIXELS,
        mean: tuple[float, ...] = (0.5,),
        std: tuple[float, ...] = (0.5,),
        batch_size: Count = 64,
        augment: Augmentation = Augmentation(),
        keep: Annotated[float, Between(0)] = 1.0,
        **options: Unpack[LabelledTableOptions],
    ) -> None:
        super().__init__(seed, "images", batch_size, **options)
        if classes is not None:
            check_classes(classes)
        self.columns, self.classes, self.keep = (image, self.label), classes, keep
        self.keeps_aspect, self.pack, self.augment = aspect == "keep", pack, augment
        check_aspect(self.keeps_aspect, pack)
        if self.keeps_aspect and resize != "crop":
            message = f"{resize} changes the shape of images, and aspect keeps it"
            raise OptionError("resize", f"{message}; leave one of them out")
        self._decoder = ImageDecoder(get_sides(size), channels, resize, max_megapixels)
        # images of several sizes are cropped and flipped where they are decoded
        self.transform = ImageTransform(
            channels, mean, std, Augmentation() if self.keeps_aspect else augment
        )
        self.crop: RandomCrop | None = None
        if augment.area < 1 or (self.keeps_aspect and augment.flip):
            self.crop = RandomCrop(seed, augment.area, augment.flip)
        self.allow_remote = allow_remote
        self.held_tables: dict[str, FetchesRows] = {}

    @cached_property
    def spec(self) -> ImageSpec:  # type: ignore[override]
        # With `classes` no table is opened. Otherwise its features declare the names.
        shape = self.decoder.shape
        if self.classes is not None:
            return ImageSpec(*shape, self.classes)
        names = list_declared_classes(self.select_table(self.open_tables(True), "train"))
        if not names:
            message = "the labels are plain numbers; set the number of classes"
            raise OptionError("classes", message)
        check_classes(names)
        return ImageSpec(*shape, len(names), names=names)

    @property
    def decoder(self) -> ImageDecoder:
        """The decoder of images, for the patches of the model where they keep their shape."""
        return replace(self._decoder, patch=self.patch_size) if self.keeps_aspect else self._decoder

    @property
    def resizing(self) -> str:  # type: ignore[override]
        return RESIZING["keep" if self.keeps_aspect else self.decoder.resize]

    def check_source(self) -> None:
        find_files(self.path)

    def check_training(self) -> None:
        if not self.keeps_aspect:
            return
        # These mix images of a batch, or draw for all of them at once.
        for key in ("crop", "randaugment", "erasing", "mixup", "cutmix"):
            if getattr(self.augment, key):
                message = "it needs images of one size in a batch, and aspect keeps that of each"
                hint = "leave it out, or set aspect to fixed"
                raise OptionError(f"augment.{key}", f"{message}; {hint}")

    def setup(self, stage: str) -> None:
        if stage == "fit":
            self.check_training()
        super().setup(stage)

    def open_tables(self, streaming: bool) -> Mapping[str, Any]:
        return open_tables(self.path, streaming)

    def select_table(self, tables: Mapping[str, Any], split: str) -> Any:
        return select_images(tables, self.splits.find_table(split), *self.columns, self.path)

    def build_reader(self, table: Any, split: str, title: str) -> ImageRowReader:
        access = choose_access(self.path, self.allow_remote)
        crop = self.crop if split == "train" else None
        return ImageRowReader(self.decoder, self.spec.classes, title, access, crop, self.pack)

    def hold_rows(self, table: Any, split: str, numbers: NDArray[np.int64]) -> FetchesRows:
        """Return a reader of the rows of a split."""
        # Another seed draws other rows of the same table, so training decodes all of it, once for
        # all seeds. A test at many sizes decodes only its own rows, and so does validation where
        # training images are cropped out of their files in every epoch.
        name = self.splits.find_table(split)
        # images of several sizes are not cached
        if (split == "train" and self.crop is not None) or self.keeps_aspect:
            return TableRows(table, self.build_reader(table, split, f"{self.path}, {name}"))
        if split == "test" or self.crop is not None:
            return self._decode_table(table, name, numbers)
        if name not in self.held_tables:
            self.held_tables[name] = self._decode_table(table, name, np.arange(len(table)))
        return self.held_tables[name]

    def _decode_table(self, table: Any, name: str, numbers: NDArray[np.int64]) -> FetchesRows:
        # Decoded images that would take too much space on disk are decoded whenever they are read.
        reader = self.build_reader(table, "val", f"{self.path}, {name}")
        if len(numbers) * math.prod(self.decoder.shape) > self.keep * GIGABYTE:
            return TableRows(table, reader)
        decoded = DecodedRows(table, reader, numbers)
        if decoded.problem:
            log.info(decoded.problem)
        return decoded

    def prepare_data(self) -> None:
        """Decode images in one process of each node; all others read them from the cache."""
        stage = None if self.trainer is None else self.trainer.state.fn
        if stage is not None and self.share.world_size > 1:
            self.setup(stage.value)

    def on_after_batch_transfer(
        self, batch: tuple[Tensor, ...], dataloader_idx: int
    ) -> tuple[Tensor, ...]:
        """Normalize a batch and, in training, augment it. See `ImageTransform`."""
        trainer, classes = self.trainer, self.spec.classes
        images, *rows, labels = batch
        if trainer is None:
            images, labels = self.transform(images, labels, training=False, classes=classes)
            return images, *rows, labels
        # Draws depend on (seed, rank, epoch, batch), so that a resumed run repeats them.
        number = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        training = bool(trainer.training)
        with isolate_rng(self.seed, self.share.rank, trainer.current_epoch, number):
            images, labels = self.transform(images, labels, training=training, classes=classes)
        return trainer.precision_plugin.convert_input(images), *rows, labels

    def read_files(self, paths: Sequence[Path], spec: DataSpec) -> Iterator[FileBatch]:
        check_reads_images(spec, self.decoder.channels, self.kind)

        def transform(files: FileBatch) -> FileBatch:
            no_labels = torch.empty(0)
            images, *rows = files.batch if isinstance(files.batch, tuple) else (files.batch,)
            images, _ = self.transform(images, no_labels, training=False, classes=0)
            return files._replace(batch=(images, *rows) if rows else images)

        files = read_image_files(paths, self.decoder, self.batch_size, self.workers, self.pack)
        return map(transform, files)

    def denormalize(self, images: Tensor) -> Tensor:
        return self.transform.denormalize(images)

    def fit_baselines(self) -> Callable[[Self], Baselines]:
        if self.streams:
            return super().fit_baselines()
        # Decoding thousands of images again would take minutes; reading their labels does not.
        labels = self._read_labels("train")
        score_images = super().fit_baselines() if self._holds_images() else None

        def score(tested: Self) -> Baselines:
            if score_images is None or not tested._holds_images():
                return score_majority(labels, tested._read_labels("test"))
            return score_images(tested)

        return score

    def _holds_images(self) -> bool:
        """Return whether all images are decoded and in memory."""
        return all(isinstance(subset.rows, DecodedRows) for subset in self.subsets.values())

    def _read_labels(self, split: str) -> Tensor:
        """Return the labels [S] of at most 10,000 rows, without rows that lack one."""
        rows, numbers = self.subsets[split].rows, self.subsets[split].numbers
        numbers = numbers[draw_numbers(len(numbers))]
        if isinstance(rows, DecodedRows):
            return rows.fetch_labels(numbers.tolist())
        assert isinstance(rows, TableRows)
        labels = []
        for value in rows.table.select_columns("label").select(numbers)["label"]:
            with suppress(ValueError):
                labels.append(read_label(value, self.spec.classes))
        return torch.tensor(labels, dtype=torch.long)


def select_images(tables: Mapping[str, Any], name: str, image: str, label: str, path: str) -> Any:
    """Return a table with the columns `image`, not decoded, `label`, and those that locate rows."""
    with explain_imports():
        import datasets

    table = select_split(tables, name, (image, label), path)
    check_columns(table, image, label, f"{path}, {name}")
    # This must come first: any other step would decode the images of a stream.
    table = table.cast_column(image, datasets.Image(decode=False))
    return rename_columns(table, {image: "image", label: "label"}, LOCATION_COLUMNS)


def choose_access(path: str, allow_remote: bool) -> ImageAccess:
    """Return which files the tables of a path may name: those below its folder."""
    with explain_imports():
        import datasets

    # `datasets` names images in its own cache, below which it downloads and extracts files.
    extracted = Path(datasets.config.EXTRACTED_DATASETS_PATH)
    if path.startswith(HUB):
        from huggingface_hub.constants import HF_HUB_CACHE

        name = path.removeprefix(HUB).partition(":")[0]
        folders = (Path(datasets.config.DOWNLOADED_DATASETS_PATH), Path(HF_HUB_CACHE))
        return ImageAccess(folders, f"hf://datasets/{name}@", allow_remote)
    name_or_format, files = find_files(path)
    folder = os.path.commonpath(
        [os.path.dirname(file) for file in files["train"]] if files else [name_or_format]
    )
    return ImageAccess((Path(folder), extracted), allow_remote=allow_remote)


def check_columns(table: Any, image: str, label: str, title: str) -> None:
    """Check that columns hold images and labels, as far as their types are known.

    Raises:
        DataError: A column holds something else.
    """
    with explain_imports():
        import datasets

    # Images are bytes, paths or dictionaries of both; types of a stream may be unknown.
    features = table.features or {}
    hint = "are data.image and data.label swapped?"
    kind = features.get(image)
    types = (*TEXT_TYPES, "binary", "large_binary", "null", MIXED_TYPE)
    if isinstance(kind, datasets.ClassLabel) or getattr(kind, "dtype", types[0]) not in (
        *types,
        "PIL.Image.Image",
        "dict",
    ):
        raise DataError(f"{title}: column {image} holds numbers, not images; {hint}")
    if isinstance(features.get(label), datasets.Image):
        raise DataError(f"{title}: column {label} holds images, not labels; {hint}")


class ImageRowReader:
    """A reader of images and labels from rows; messages name the rows by `title`.

    In an epoch of training, each image is a random crop of its file, if `crop` is given.
    """

    def __init__(
        self,
        decoder: ImageDecoder,
        classes: int,
        title: str,
        access: ImageAccess,
        crop: RandomCrop | None = None,
        pack: int | None = None,
    ) -> None:
        self.decoder, self.classes, self.title, self.access = decoder, classes, title, access
        self.crop, self.pack = crop, pack

    def read_rows(
        self, rows: Sequence[tuple[int, Mapping[str, Any]]], epoch: int | None = None
    ) -> RowBatch:
        """Read numbered rows, and collect the errors of corrupt ones."""
        images, labels = [], []
        errors: dict[int, str] = {}
        for number, row in rows:
            with collect_damage(errors, number, self.locate(number, row)):
                label = self.read_label(row["label"])
                crop = None
                if self.crop is not None and epoch is not None:
                    crop = self.crop.draw(epoch, number)
                is_whole = crop is None or crop.area == 1
                content = self.access.read(row["image"])
                image = self.decoder.decode(content, None if is_whole else crop)
                # a whole picture is only flipped
                if crop is not None and is_whole and crop.draw_flip():
                    image = image[..., ::-1]
                images.append(image)
                labels.append(label)
        inputs = self.decoder.lay_out(images, self.pack)
        return RowBatch(
            inputs if len(inputs) > 1 else inputs[0], torch.tensor(labels, dtype=torch.long), errors
        )

    def read_label(self, value: Any) -> int:
        """Return the class of a label. Raises ValueError if it has none."""
        return read_label(value, self.classes)

    def locate(self, number: int, row: Mapping[str, Any]) -> str:
        """Return the name of a row in messages."""
        names = (row.get("__url__"), (row["image"] or {}).get("path") or row.get("__key__"))
        return ", ".join([self.title, f"row {number}", *filter(None, names)])


class DecodedRows:
    """Rows of an image table that are decoded once and mapped from the cache.

    Args:
        table: The table, not decoded.
        reader: Decodes its rows.
        numbers: Numbers of the rows to decode, ascending.
    """

    def __init__(self, table: Any, reader: ImageRowReader, numbers: NDArray[np.int64]) -> None:
        self.numbers = numbers
        entry = load_or_make(
            _digest_rows(table, reader, numbers), lambda: _decode_rows(table, reader, numbers)
        )
        shape = reader.decoder.shape
        self.images: NDArray[np.uint8] = entry.array.reshape(-1, *shape)  # [N, C, H, W]
        self.labels = np.array(entry.metadata["labels"], np.int64)
        self.errors = {int(row): str(error) for row, error in entry.metadata["errors"].items()}
        self.problem = entry.problem and entry.problem.replace("encoded texts", "decoded images")
        """Why the images could not be cached."""

    def fetch(self, numbers: Sequence[int], epoch: int | None = None) -> RowBatch:
        """Return rows by their numbers in the table, the same in every epoch."""
        errors = {number: self.errors[number] for number in numbers if number in self.errors}
        images = torch.from_numpy(self.images[self._find_sound(numbers)])
        return RowBatch(images, self.fetch_labels(numbers), errors)

    def fetch_labels(self, numbers: Sequence[int]) -> Tensor:
        """Return the labels of rows by their numbers in the table, without corrupt rows."""
        return torch.from_numpy(self.labels[self._find_sound(numbers)])

    def _find_sound(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        # Corrupt rows have errors in place of images.
        sound = [number for number in numbers if number not in self.errors]
        return np.searchsorted(self.numbers, sound)


def _digest_rows(table: Any, reader: ImageRowReader, numbers: NDArray[np.int64]) -> str:
    """Return a SHA-256 of everything that decoded rows depend on."""
    options = [PIXELS_VERSION, asdict(reader.decoder), reader.classes, reader.title]
    digest = hashlib.sha256(json.dumps(options).encode())
    digest.update(numbers.tobytes())
    for columns in table.select(numbers).iter(CHUNK):
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            # A problem is reported when the image is decoded, and kept with the others.
            problems: dict[int, str] = {}
            content = b""
            with collect_damage(problems, 0):
                content = reader.access.read(row["image"])
            parts = [hashlib.sha256(content).hexdigest(), repr(row["label"]), problems.get(0)]
            # An error that is kept names its row: it must not be that of another table.
            digest.update(json.dumps([*parts, reader.locate(0, row)]).encode())
    return digest.hexdigest()


def _decode_rows(table: Any, reader: ImageRowReader, numbers: NDArray[np.int64]) -> CacheEntry:
    rows = TableRows(table, reader)
    images = np.zeros((len(numbers), *reader.decoder.shape), np.uint8)
    labels = np.full(len(numbers), -1)
    errors: dict[int, str] = {}
    for start in range(0, len(numbers), CHUNK):
        chunk = numbers[start : start + CHUNK].tolist()
        batch = rows.fetch(chunk)
        sound = [start + at for at, number in enumerate(chunk) if number not in batch.errors]
        assert isinstance(batch.inputs, Tensor)
        images[sound], labels[sound] = batch.inputs.numpy(), batch.labels.numpy()
        errors |= batch.errors
    return CacheEntry({"labels": labels.tolist(), "errors": errors}, images.reshape(-1))
