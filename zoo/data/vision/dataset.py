"""Images decoded once, kept on disk under a sum of their contents, and mapped into memory after that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zoo.data.base import Given
from zoo.data.cache import Entry, kept
from zoo.data.spec import ImageSpec, Samples
from zoo.data.tables import open_table
from zoo.data.tables.dataset import Asked, Fetched, numbered
from zoo.data.vision.augmentation import Augmentation, Change
from zoo.data.vision.decode import Decoding
from zoo.errors import OptionError


@contextmanager
def alone(*numbers: int) -> Iterator[None]:
    """Draws of the CPU that are a function of these numbers, and change none that follow: augmentation is the same
    whatever a model draws, such as one encoding and not another.
    """
    seed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed >> np.uint64(1)))
        yield


class Finished:
    """(image - mean) / std of images uint8 in units of white; one number of each for all channels, or one per channel."""

    def __init__(
        self,
        channels: int,
        sides: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        augment: Augmentation,
    ) -> None:
        for key, numbers in (("mean", mean), ("std", std)):
            if len(numbers) not in (1, channels):
                raise OptionError(
                    key,
                    f"{len(numbers)} numbers for {channels} channels; give one of them, or {channels}",
                )
        if min(std) <= 0:
            raise OptionError("std", f"{min(std):g} is not positive")
        self.sides, self.mean, self.std, self.augment = sides, tuple(mean), tuple(std), augment
        self._changes: tuple[list[Change], list[Change]] | None = None

    def __call__(
        self, images: Tensor, labels: Tensor, *, training: bool, classes: int
    ) -> tuple[Tensor, Tensor]:
        """Images float32 [B, C, height, width], and labels [B] or shares [B, classes]."""
        images = images.to(torch.float32) / 255
        if not training or self.augment == Augmentation():
            return self._scaled(images), labels
        if self._changes is None:  # only now, for kornia takes seconds to import
            self._changes = (self.augment.before(self.sides), self.augment.after())
        before, after = self._changes
        for change in before:
            images = change(images)
        images = self._scaled(images)
        for change in after:
            images = change(images)
        return self.augment.mixed(images, labels, classes)

    def undone(self, images: Tensor) -> Tensor:
        """Images [B, C, height, width] in units of white again."""
        mean, std = self._numbers(images)
        return images * std + mean

    def _scaled(self, images: Tensor) -> Tensor:
        mean, std = self._numbers(images)
        return (images - mean) / std

    def _numbers(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images.new_tensor(self.mean)[:, None, None], images.new_tensor(self.std)[
            :, None, None
        ]


class Files(Dataset[Given]):
    """Files of images, fetched by batches of their numbers as uint8 [B, C, S, S]."""

    def __init__(self, paths: Sequence[Path], decoding: Decoding) -> None:
        self.paths, self.decoding = paths, decoding

    def __len__(self) -> int:
        return len(self.paths)

    def __getitems__(self, numbers: Sequence[int]) -> Given:
        images: dict[Path, Any] = {}
        faults: dict[Path, str] = {}
        for path in (self.paths[number] for number in numbers):
            try:
                images[path] = self.decoding(path.read_bytes())
            except (OSError, ValueError) as error:
                faults[path] = brief(error)
        stacked = (
            np.stack([*images.values()])
            if images
            else np.empty((0, *self.decoding.shape), np.uint8)
        )
        return Given(tuple(images), torch.from_numpy(stacked), faults)


def pictures(
    paths: Sequence[Path], decoding: Decoding, batch_size: int, workers: int
) -> Iterator[Given]:
    """Batches of files in their order."""
    files = Files(paths, decoding)
    workers = min(
        workers, -(-len(paths) // batch_size) - 1
    )  # one for a batch that there is to wait for
    yield from DataLoader(files, batch_size, num_workers=max(workers, 0), collate_fn=_as_fetched)


def refuse_others(samples: Samples, channels: int) -> None:
    """Raises OptionError where a model reads something other than images with so many channels."""
    if type(samples) is not ImageSpec:
        raise OptionError("name", f"a source of images, the model reads {samples.noun}")
    if samples.channels != channels:
        raise OptionError(
            "channels", f"{channels} channels, the model reads images of {samples.channels}"
        )


def brief(error: Exception) -> str:
    """What is wrong, in one line."""
    told = error.strerror if isinstance(error, OSError) else str(error)
    return ((told or "").splitlines() or [type(error).__name__])[0][:200]


def _as_fetched(batch: Any) -> Any:
    return batch


class Reader:
    """Makes samples of the rows of a table. `title` is what they are called in messages, with their number."""

    def __init__(self, decoding: Decoding, classes: int, title: str) -> None:
        self.decoding, self.classes, self.title = decoding, classes, title

    def fetched(self, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> Fetched:
        """Samples of numbered rows."""
        images, labels, faults = [], [], {}
        for number, row in rows:
            try:
                label = numbered(row["label"], self.classes)
                images.append(self.decoding(content(row["image"])))
                labels.append(label)
            except (OSError, ValueError) as error:
                faults[number] = f"{self._named(number, row)}: {str(error).splitlines()[0]}"
        stacked = np.stack(images) if images else np.empty((0, *self.decoding.shape), np.uint8)
        return Fetched(torch.from_numpy(stacked), torch.tensor(labels, dtype=torch.long), faults)

    def _named(self, number: int, row: Mapping[str, Any]) -> str:
        told = (row.get("__url__"), (row["image"] or {}).get("path") or row.get("__key__"))
        return ", ".join([self.title, f"row {number}", *filter(None, told)])


class Encoded(Asked):
    """The rows of a table of images, decoded whenever they are fetched."""

    reader: Reader


def content(image: Mapping[str, Any] | None) -> bytes:
    """The bytes of an image that a table holds, or names the file of. Raises ValueError or OSError."""
    import fsspec

    if image and image.get("bytes"):
        return bytes(image["bytes"])
    if not image or not image.get("path"):
        raise ValueError("there is no image")
    with fsspec.open(image["path"], "rb") as file:
        return bytes(file.read())


AT_ONCE = 1000  # rows


class Decoded:
    """Those rows of a table that `numbers` name, ascending. `faults` are of those that could not be decoded; `problem` says
    why nothing could be kept.
    """

    def __init__(self, encoded: Encoded, numbers: NDArray[np.int64]) -> None:
        self.numbers = numbers
        entry = kept(_sum(encoded, numbers), lambda: _decoded(encoded, numbers))
        shape = encoded.reader.decoding.shape
        self.images: NDArray[np.uint8] = entry.tokens.reshape(-1, *shape)  # [N, C, S, S]
        self.labels = np.array(entry.facts["labels"], np.int64)
        self.faults = {int(number): str(fault) for number, fault in entry.facts["faults"].items()}
        self.problem = (
            entry.problem and f"decoded images cannot be kept: {entry.problem.partition(': ')[2]}"
        )

    def fetch(self, numbers: Sequence[int]) -> Fetched:
        sound = [number for number in numbers if number not in self.faults]
        faults = {number: self.faults[number] for number in numbers if number in self.faults}
        at = np.searchsorted(self.numbers, sound)
        return Fetched(torch.from_numpy(self.images[at]), torch.from_numpy(self.labels[at]), faults)


def _sum(encoded: Encoded, numbers: NDArray[np.int64]) -> str:
    """SHA-256 of all that decoded rows depend on."""
    reader = encoded.reader
    total = hashlib.sha256(
        json.dumps([asdict(reader.decoding), reader.classes, reader.title]).encode()
    )
    total.update(numbers.tobytes())
    for columns in encoded.table.select(numbers).iter(AT_ONCE):
        for image, label in zip(columns["image"], columns["label"], strict=True):
            held = b""
            with suppress(OSError, ValueError):  # told when it is decoded
                held = content(image)
            total.update(hashlib.sha256(held).digest() + repr(label).encode())
    return total.hexdigest()


def _decoded(encoded: Encoded, numbers: NDArray[np.int64]) -> Entry:
    images = np.zeros((len(numbers), *encoded.reader.decoding.shape), np.uint8)
    labels = np.full(len(numbers), -1)
    faults: dict[int, str] = {}
    for first in range(0, len(numbers), AT_ONCE):
        some = numbers[first : first + AT_ONCE].tolist()
        found = encoded.fetch(some)
        sound = [first + at for at, number in enumerate(some) if number not in found.faults]
        images[sound], labels[sound] = found.inputs.numpy(), found.labels.numpy()
        faults |= found.faults
    return Entry({"labels": labels.tolist(), "faults": faults}, images.reshape(-1))


WHERE = ("__url__", "__key__")  # the columns in which webdataset names a shard, and a sample in it


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a table that hold images and labels."""

    image: str
    label: str


def split(tables: Mapping[str, Any], name: str, columns: Columns, path: str) -> Any:
    """One table with the columns `image` and `label`, and WHERE it has them; its images are not yet decoded."""
    import datasets

    table = open_table.split(tables, name, (columns.image, columns.label), path)
    # first: what comes after decodes in a stream
    table = table.cast_column(columns.image, datasets.Image(decode=False))
    table = table.select_columns(
        [columns.image, columns.label, *(word for word in WHERE if word in table.features)]
    )
    given = {columns.image: "image", columns.label: "label"}
    return table.rename_columns({old: new for old, new in given.items() if old != new})
