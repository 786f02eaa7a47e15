"""Your own images with masks: pairs of folders, Parquet files, or a dataset of the Hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.baselines import Baselines, fit_pixels
from zoo.data.class_counts import ClassCounts, count_drawn
from zoo.data.images import Images, PictureOptions, choose_access
from zoo.data.padding import stack_padded
from zoo.data.pictures import find_upright_size
from zoo.data.random_crop import DrawnCrop, RandomCrop, resize_crop
from zoo.data.spec import IGNORE_INDEX, SegmentationSpec
from zoo.data.tables.labelled_table import FetchesRows, RowBatch, TableRows, check_classes
from zoo.data.tables.open_table import (
    HUB,
    find_files,
    is_table,
    open_tables,
    rename_columns,
    select_split,
)
from zoo.data.vision import Augmentation, ImageAccess, ImageDecoder, Probability
from zoo.errors import DataError, OptionError
from zoo.options import Between, Count
from zoo.packages import explain_imports
from zoo.registry import register
from zoo.suggestions import join_words
from zoo.utils import collect_damage, describe_absence, guard_reading

USUAL_IGNORED = 255
"""The number of pixels without a class in most public datasets."""
MAX_NUMBER = 65_535
"""Largest number of a class in a mask, of 16 bits."""
MAX_CLASSES = 32_767
"""Largest number of classes of pixels, which batches hold in 16 bits."""
LOSSY = ("JPEG", "MPO", "jpeg", "tiff_jpeg", "webp")
"""Formats of Pillow, and compressions of its TIFF files, that change numbers of pixels."""
UNKNOWN = -1
"""The class of a number that no option names, until it is refused."""
MAX_BASELINE_SIDE = 256
"""Larger images are not read again for baselines, since decoding takes minutes."""
INDEXED_MODES = ("P", "L", "1", "I", "I;16", "I;16B")
"""Modes of Pillow whose numbers are classes: of a palette, or of one channel."""


@dataclass(frozen=True, kw_only=True)
class PairAugmentation:
    """Augmentations of training images and of their masks in the same way."""

    area: Annotated[float, Between(0.01, 1)] = 1.0
    """Random resized crop of the file: smallest fraction of its area; 1 disables it."""
    flip: Probability = 0.0
    """Probability of a horizontal flip."""


@register
class ImageMasks(Images):
    """Images [B, channels, height, width] and masks [B, height, width] of `path`.

    `image` and `mask` name two folders in `path`, with pairs of files of the same name, except for
    the suffix; folders in both, such as train and val, are splits. Otherwise `path` is a table, as
    `images` reads it, and they name its columns. `train` names a split; `val` and `test`
    each name a split or are fractions of `train`. Masks are PNG files with a palette or with one
    channel, whose numbers are classes: `first` is the number of the first class, and pixels with
    smaller numbers have no class, nor those of the numbers of `ignore`. By default that is 255,
    if it is not a class. `numbers` lists the number of each class where they do not follow each
    other, such as 0 and 255. `classes` is the number of classes, or their names. Images are read as
    `images` does, and masks resized to the nearest pixel.
    """

    kind = SegmentationSpec

    def __init__(
        self,
        seed: int,
        *,
        image: str = "images",
        mask: str = "masks",
        classes: Count | tuple[str, ...] | None = None,
        first: Annotated[int, Between(0)] = 0,
        numbers: tuple[Annotated[int, Between(0, MAX_NUMBER)], ...] | None = None,
        ignore: tuple[int, ...] | None = None,
        batch_size: Count = 16,
        augment: PairAugmentation = PairAugmentation(),
        **options: Unpack[PictureOptions],
    ) -> None:
        if classes is None:
            raise OptionError("classes", "missing: set it to the number or the names of classes")
        check_classes(classes)
        count = classes if isinstance(classes, int) else len(classes)
        if count > MAX_CLASSES:
            message = "to save memory, a batch holds the classes of pixels in 16 bits"
            raise OptionError("classes", f"{count:,}; {message}, at most {MAX_CLASSES:,}")
        super().__init__(
            seed,
            image=image,
            label=mask,
            classes=count,
            batch_size=batch_size,
            augment=Augmentation(area=augment.area, flip=augment.flip),
            **options,
        )
        self.names = () if isinstance(classes, int) else classes
        if numbers is not None:
            _check_numbers(numbers, count, first)
        elif first + count - 1 > MAX_NUMBER:
            message = f"classes are numbered up to {first + count - 1:,}, and the numbers of masks"
            raise OptionError("first", f"{message} have 16 bits, up to {MAX_NUMBER:,}")
        in_order = tuple(range(first, first + count)) if numbers is None else numbers
        # 255 is a class only where the numbers of classes reach it
        self.assumed = USUAL_IGNORED if ignore is None and USUAL_IGNORED not in in_order else None
        if ignore is None:
            ignore = () if self.assumed is None else (self.assumed,)
        self._masks = MaskDecoder(
            self._decoder.sides,
            1,
            self._decoder.resize,
            self._decoder.max_megapixels,
            numbers=in_order,
            first=first if numbers is None else 0,
            ignore=ignore,
        )

    @property
    def masks(self) -> MaskDecoder:
        """The decoder of masks, which get the sizes of their images."""
        return replace(self._masks, patch=self.decoder.patch)

    @cached_property
    def spec(self) -> SegmentationSpec:  # type: ignore[override]
        return SegmentationSpec(*self.decoder.shape, len(self._masks.numbers), names=self.names)

    @property
    def folders(self) -> tuple[Path, Path] | None:
        """The folders of images and masks; None if the path is a table."""
        if self.path.startswith(HUB):
            return None
        images, masks = (Path(self.path).expanduser().absolute() / name for name in self.columns)
        return (images, masks) if images.is_dir() and masks.is_dir() else None

    def check_source(self) -> None:
        if self.folders is not None:
            return
        place, files = find_files(self.path)
        if files is None and Path(place).is_dir():
            inside = [*Path(place).rglob("*")]
            if not any(is_table(path) or path.suffix == ".tar" for path in inside):
                image, mask = self.columns
                folders = ", ".join(
                    sorted(path.name for path in Path(place).iterdir() if path.is_dir())
                )
                message = f"no table, and no folders {image} and {mask}, but {folders or 'none'}"
                raise DataError(f"{self.path}: {message}; set data.image and data.mask")

    def open_tables(self, streaming: bool) -> Mapping[str, Any]:
        return open_tables(self.path) if self.folders is None else list_pairs(*self.folders)

    def select_table(self, tables: Mapping[str, Any], split: str) -> Any:
        with explain_imports():
            import datasets

        image, mask = ("image", "mask") if self.folders else self.columns
        table = select_split(tables, self.splits.find_table(split), (image, mask), self.path)
        for column in (image, mask):
            table = table.cast_column(column, datasets.Image(decode=False))
        return rename_columns(table, {image: "image", mask: "mask"})

    def build_reader(self, table: Any, split: str, title: str) -> PairReader:  # type: ignore[override]
        access = choose_access(self.path, self.allow_remote)
        augment = self.augment if split == "train" else Augmentation()
        crop = RandomCrop(self.seed, augment.area, augment.flip)
        return PairReader(self.decoder, self.masks, title, access, crop, self.pack)

    def hold_rows(self, table: Any, split: str, numbers: NDArray[np.int64]) -> FetchesRows:
        title = f"{self.path}, {self.splits.find_table(split)}"
        return TableRows(table, self.build_reader(table, split, title))

    def count_classes(self, split: str) -> ClassCounts:
        """Count the numbers in some masks, or in all of them if they are read in seconds.

        Masks are resized as in evaluation.
        """
        table = self.select_table(self.tables, split)
        rows = self.splits.draw_rows(split, len(table), self.seed)
        access = choose_access(self.path, self.allow_remote)
        masks, excluded = self.masks, self.ignored_target
        errors: dict[int, str] = {}

        def read(chosen: Sequence[int]) -> Counter[int]:
            counts = Counter[int]()
            for row in chosen:
                # one of many masks that cannot be read is reported by the loader
                number = int(rows[row])
                with collect_damage(errors, number, f"{self.path}, {split}, row {number}"):
                    content = access.read(table[number]["mask"])
                    numbers, amounts = np.unique(masks.read_numbers(content), return_counts=True)
                    counts.update(dict(zip(numbers.tolist(), amounts.tolist(), strict=True)))
            return counts

        classes = masks.list_classes()
        wanted = {number for number, name in classes.items() if name != excluded}
        counted, read_count = count_drawn(len(rows), read, wanted)
        if errors and len(errors) == read_count:
            raise DataError(next(iter(errors.values())))
        counts = [0] * len(masks.numbers)
        for number in wanted:
            counts[classes[number]] = counted[number]
        # other numbers are refused where they are read
        ignored = {
            number: count
            for number, count in counted.items()
            if masks.is_ignored(number) or classes.get(number) == excluded
        }
        place = self.path if self.folders is None else str(Path(self.path, self.columns[1]))
        return ClassCounts(
            targets=sum(counts),
            classes=tuple(counts),
            ignored=ignored,
            unit="pixel",
            excluded=excluded,
            assumed=self.assumed,
            read=read_count,
            total=len(rows),
            place=f"{place}, {split}",
            remedy=self._explain_numbers(counted),
        )

    def _explain_numbers(self, counted: Mapping[int, int]) -> str:
        """Return what to set where a class has no pixel, by the numbers found in masks."""
        if self.assumed is None or not counted.get(self.assumed):
            return f"the first class has the number {self._masks.numbers[0]} in masks"
        listed = f", such as {sorted(counted)}" if len(counted) == len(self._masks.numbers) else ""
        return (
            f"if {self.assumed} is a class, list the numbers of all classes in data.numbers"
            f"{listed}, or write masks of 0, 1 and so on; if it is none, set data.ignore "
            f"to [{self.assumed}]"
        )

    def on_after_batch_transfer(
        self, batch: tuple[Tensor, ...], dataloader_idx: int
    ) -> tuple[Tensor, ...]:
        """Normalize a batch. Images and masks are augmented where they are decoded."""
        images, *rows, masks = batch
        images, masks = self.transform(images, masks, training=False, classes=self.spec.classes)
        if self.trainer is not None:
            images = self.trainer.precision_plugin.convert_input(images)
        return images, *rows, masks

    def fit_baselines(self) -> Callable[[Self], Baselines]:
        if max(self.spec.grid) > MAX_BASELINE_SIDE:
            return lambda tested: {}
        fitted = fit_pixels(self.subsets, self.spec, self.ignored_target)

        def score(tested: Self) -> Baselines:
            is_small = max(tested.spec.grid) <= MAX_BASELINE_SIDE
            return fitted.score(tested.subsets["test"]) if is_small else {}

        return score


def list_pairs(images: Path, masks: Path) -> Mapping[str, Any]:
    """Return tables of the files in two folders, by split: the first folder below both.

    Files without a folder are those of the split train.

    Raises:
        DataError: A file of one folder has no file of the same name in the other, or there is none.
    """
    stems = _list_stems(images), _list_stems(masks)
    for present, opposite, place in ((stems[0], stems[1], masks), (stems[1], stems[0], images)):
        alone = sorted(present.keys() - opposite.keys())
        if alone:
            message = f"{present[alone[0]]} has no file of the same name in {place}"
            raise DataError(f"{message} ({len(alone)} of {len(present)} have none)")
    if not stems[0]:
        raise DataError(f"{images}: {describe_absence(images / '*')}")
    for path in [*stems[0].values(), *stems[1].values()]:
        # tables of Arrow hold UTF-8
        with guard_reading(path, lambda _: "its name is not UTF-8; rename the file"):
            str(path).encode()
    with explain_imports():
        import datasets

    rows: dict[str, dict[str, list[str]]] = {}
    for stem in sorted(stems[0]):
        split = stem.parts[0] if len(stem.parts) > 1 else "train"
        columns = rows.setdefault(split, {"image": [], "mask": []})
        columns["image"].append(str(stems[0][stem]))
        columns["mask"].append(str(stems[1][stem]))
    return {split: datasets.Dataset.from_dict(columns) for split, columns in rows.items()}


def _list_stems(folder: Path) -> dict[Path, Path]:
    """Return {path below the folder, without suffix: file}, without hidden files."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    return {path.relative_to(folder).with_suffix(""): path for path in files}


@dataclass(frozen=True)
class MaskDecoder(ImageDecoder):
    """A decoder of masks to class numbers int16 [height, width], to the nearest pixel."""

    numbers: tuple[int, ...] = field(kw_only=True)
    """The number of each class in files."""
    first: int = field(kw_only=True)
    """Pixels with smaller numbers have no class."""
    ignore: tuple[int, ...] = field(kw_only=True)
    """Numbers in files that stand for no class."""

    def is_ignored(self, number: int) -> bool:
        """Return whether a number in files stands for no class."""
        return number < self.first or number in self.ignore

    def list_classes(self) -> dict[int, int]:
        """Return the class of each number in files that stands for one."""
        pairs = enumerate(self.numbers)
        return {number: name for name, number in pairs if not self.is_ignored(number)}

    def decode_mask(
        self, content: bytes, size: tuple[int, int], crop: DrawnCrop | None = None
    ) -> NDArray[np.int16]:
        """Decode the bytes of a mask.

        Args:
            content: The bytes.
            size: Width and height of the upright image.
            crop: What to cut out, as of the image. None: all of it, resized as in evaluation.

        Raises:
            ValueError: They are no mask of that size, or it has a number of no class.
        """
        numbers = self.read_numbers(content, size, crop)
        # one more entry for all larger numbers
        table = np.full(max(self.numbers) + 2, UNKNOWN, np.int16)
        table[list(self.numbers)] = np.arange(len(self.numbers))
        classes = table[np.clip(numbers, 0, len(table) - 1)]
        classes[(numbers < self.first) | np.isin(numbers, self.ignore)] = IGNORE_INDEX
        if classes.min() == UNKNOWN:
            number = int(numbers[classes == UNKNOWN].max())
            lowest = min(self.numbers)
            message = f"number {number} in a mask, and {len(self.numbers)} classes from {lowest}"
            hint = "set data.classes or data.numbers, or name it in data.ignore"
            raise ValueError(f"{message}; {hint}")
        return classes

    def read_numbers(
        self, content: bytes, size: tuple[int, int] | None = None, crop: DrawnCrop | None = None
    ) -> NDArray[np.int32]:
        """Read the numbers of a mask [height, width], to the nearest pixel.

        Args:
            content: The bytes.
            size: Width and height that it must have. None: any.
            crop: What to cut out. None: all of it, resized as in evaluation.

        Raises:
            ValueError: They are no mask of that size.
        """
        with self.open_limited(content) as file:
            from PIL.Image import Resampling

            numbers = _read_numbers(file, size)
            if crop is None:
                numbers = self.resize_image(numbers, Resampling.NEAREST)
            else:
                box = crop.draw_box(*numbers.size)
                numbers = resize_crop(numbers, *box, self.sides, Resampling.NEAREST)
        return np.asarray(numbers)


def _check_numbers(numbers: tuple[int, ...], classes: int, lowest: int) -> None:
    """Raise OptionError where the numbers of classes are not one for each."""
    if len(numbers) != classes:
        message = f"{len(numbers)} numbers for {classes} classes; give one for each"
        raise OptionError("numbers", message)
    if len(set(numbers)) < len(numbers):
        raise OptionError("numbers", "two classes have the same number; give one for each")
    if lowest:
        raise OptionError("first", "numbers lists the number of each class; leave one of them out")


def _read_numbers(file: Any, size: tuple[int, int] | None) -> Any:
    """Return the numbers of a mask as a picture of mode I. Raises ValueError if it has none."""
    from PIL import Image

    if file.format in LOSSY or file.info.get("compression") in LOSSY:
        message = "a mask of JPEG or another lossy format, which changes the numbers of classes"
        raise ValueError(f"{message}; save it as PNG from the original")
    if file.mode not in INDEXED_MODES:
        message = f"a mask with colours ({file.mode}), which are no class numbers"
        raise ValueError(f"{message}; save it with a palette or one channel")
    if size is not None and file.size != size:
        shapes = join_words(f"{width} x {height}" for width, height in (file.size, size))
        raise ValueError(f"mask and image differ in size, {shapes} pixels")
    return Image.fromarray(np.asarray(file).astype(np.int32))


class PairReader:
    """A reader of images and masks from rows; messages name the rows by `title`.

    In an epoch of training, both are cropped and flipped as `crop` draws for them.
    """

    def __init__(
        self,
        decoder: ImageDecoder,
        masks: MaskDecoder,
        title: str,
        access: ImageAccess,
        crop: RandomCrop,
        pack: int | None = None,
    ) -> None:
        self.decoder, self.masks, self.title, self.access = decoder, masks, title, access
        self.crop, self.pack = crop, pack

    def read_rows(
        self, rows: Sequence[tuple[int, Mapping[str, Any]]], epoch: int | None = None
    ) -> RowBatch:
        """Read numbered rows, and collect the errors of corrupt ones."""
        images, masks = [], []
        errors: dict[int, str] = {}
        for number, row in rows:
            places = [self.locate(number, row, column) for column in ("image", "mask")]
            with collect_damage(errors, number, places[0]):
                content = self.access.read(row["image"])
                with self.decoder.open_limited(content) as file:
                    size = find_upright_size(file)
                # drawn once for each, from the same random state
                is_cropped = epoch is not None and self.crop.area < 1
                crops = [self.crop.draw(epoch or 0, number) if is_cropped else None for _ in places]
                image = self.decoder.decode(content, crops[0])
            if number in errors:
                continue
            with collect_damage(errors, number, places[1]):
                mask = self.masks.decode_mask(self.access.read(row["mask"]), size, crops[1])
                # a crop is flipped where it is cut out
                if epoch is not None and not is_cropped and self._draw_flip(epoch, number):
                    image, mask = image[..., ::-1], mask[..., ::-1]
                images.append(image)
                masks.append(mask)
        inputs = self.decoder.lay_out(images, self.pack)
        stacked = torch.empty(0, *self.masks.sides, dtype=torch.int16)
        if masks:
            # copies, since a flipped array is a view
            stacked = stack_padded(masks, IGNORE_INDEX)
        return RowBatch(inputs if len(inputs) > 1 else inputs[0], stacked, errors)

    def locate(self, number: int, row: Mapping[str, Any], column: str) -> str:
        """Return the name of the picture of a row, image or mask, in messages."""
        path = (row[column] or {}).get("path")
        return f"{self.title}, {path or f'row {number}, {column}'}"

    def _draw_flip(self, epoch: int, number: int) -> bool:
        rng = np.random.default_rng([self.crop.seed, epoch, number])
        return bool(rng.random() < self.crop.flip)
