"""Decode image files to arrays of one size, and normalize and augment batches on the device."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from zoo.data.base import FileBatch
from zoo.data.padding import stack_padded
from zoo.data.patch_rows import fit_grid, place_patches
from zoo.data.pictures import find_upright_size, read_pixels, reduce_scale
from zoo.data.random_crop import DrawnCrop, resize_crop
from zoo.data.sampler import WorkerStart, keep_batch
from zoo.data.spec import DataSpec, ImageSpec
from zoo.errors import OptionError
from zoo.options import Between, Count
from zoo.packages import explain_imports
from zoo.utils import collect_damage, describe_cause, raise_if_out_of_memory, read_bytes

Size = Count | tuple[Count, Count]
RESIZING = {
    "keep": "resized bicubically to as many patches as the size has, or less, in its own shape",
    "crop": "resized bicubically to cover the size, then cropped at the centre",
    "exact": "each side resized to its own length, bicubically",
}
MAX_MEGAPIXELS = 64.0
LEAST_ALPHA = 1e-3
"""Smallest alpha of mixup and cutmix."""
MAX_ASPECT_RATIO = 256
"""Largest ratio of the sides of an image. Beyond it, a file of some kilobytes could become
gigabytes when its short side is enlarged."""
ARCHIVES = ("zip://", "tar://", "gzip://", "xz://", "zstd://", "bz2://")
REMOTE = ("https://", "http://", "hf://", "s3://", "gs://")
Probability = Annotated[float, Between(0, 1)]
Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ImageDecoder:
    """A decoder of images to uint8 [channels, height, width], resized bicubically.

    `crop` resizes an image so that it just covers the size, and crops it at the centre; `exact`
    resizes each side to its own length.
    """

    sides: tuple[int, int]
    """Height and width."""
    channels: int
    resize: Literal["crop", "exact"]
    max_megapixels: float = MAX_MEGAPIXELS
    """Size of the largest image that is decoded, in millions of pixels."""
    patch: int | None = None
    """Side of a patch in pixels, for images that keep their shape: they get as many patches as
    `sides` has, or less. None: all images get `sides`."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, *self.sides

    def decode(self, content: bytes, crop: DrawnCrop | None = None) -> NDArray[np.uint8]:
        """Decode the bytes of a file, as `read_pixels` reads it.

        Args:
            content: The bytes.
            crop: What to cut out of the original picture. None: all of it, resized as in
                evaluation.

        Raises:
            ValueError: They are no image, or one that is damaged, too large or too narrow, or that
                says something which is not followed.
        """
        mode = "RGB" if self.channels == 3 else "L"
        with self.open_limited(content) as file:
            image = self._read_crop(file, mode, crop) if crop else read_pixels(file, mode)
            resized = image if crop else self.resize_image(image)
            # one band after the other, in half the time of exchanging axes
            bands = b"".join(resized.tobytes("raw", band) for band in resized.getbands())
            shape = (self.channels, resized.height, resized.width)
            return np.frombuffer(bands, np.uint8).reshape(shape)

    def find_sides(self, width: float, height: float) -> tuple[int, int]:
        """Return the height and width in pixels that a picture, or a box of one, is resized to."""
        if self.patch is None:
            return self.sides
        patches = math.prod(side // self.patch for side in self.sides)
        rows, columns = fit_grid(height, width, patches)
        return rows * self.patch, columns * self.patch

    @contextmanager
    def open_limited(self, content: bytes) -> Iterator[Any]:
        """Open the bytes of a file with Pillow, and explain what goes wrong within the block.

        Raises:
            ValueError: They are no image, or one that is damaged, too large or too narrow.
        """
        with explain_imports():
            from PIL import Image, UnidentifiedImageError

        try:
            with self._limit_pixels(), Image.open(BytesIO(content)) as file:
                _check_aspect_ratio(*file.size)
                yield file
        except UnidentifiedImageError:
            raise ValueError("not an image of a known format") from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            limit = f"more than {self.max_megapixels:g} megapixels"
            raise ValueError(f"{limit}; make it smaller, or raise data.max_megapixels") from None
        except Exception as error:
            raise_if_out_of_memory(error)
            # Every format of Pillow raises its own errors.
            raise ValueError(describe_cause(error)) from None

    @contextmanager
    def _limit_pixels(self) -> Iterator[None]:
        """Set the number of pixels above which Pillow refuses an image before decoding it."""
        from PIL import Image

        before = Image.MAX_IMAGE_PIXELS
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            Image.MAX_IMAGE_PIXELS = int(self.max_megapixels * 1e6)
            try:
                yield
            finally:
                Image.MAX_IMAGE_PIXELS = before

    def stack(self, images: Sequence[NDArray[np.uint8]]) -> torch.Tensor:
        """Stack zero or more decoded images to [B, C, H, W], in upper left corners."""
        if self.patch is not None and images:
            return stack_padded(images, 0)
        return torch.from_numpy(np.stack(images) if images else np.empty((0, *self.shape), "u1"))

    def lay_out(self, images: Sequence[NDArray[np.uint8]], pack: int | None) -> tuple[Tensor, ...]:
        """Return the inputs of a model: images [B, C, H, W] and, of several sizes, `PatchRows`.

        Args:
            images: Decoded images.
            pack: Number of tokens of a row that several images share. None: a row for each.
        """
        stacked = self.stack(images)
        if self.patch is None or not images:
            return (stacked,)
        patch = self.patch
        grids = [(image.shape[1] // patch, image.shape[2] // patch) for image in images]
        rows = place_patches(grids, pack=pack)
        return (stacked, *(part for part in rows if part is not None))

    def _read_crop(self, file: Any, mode: str, crop: DrawnCrop) -> Any:
        """Read a crop of the upright original, resized to `sides`."""
        if file.format != "JPEG":
            image = read_pixels(file, mode)
            box, is_flipped = crop.draw_box(*image.size)
            sides = self.find_sides(box[2] - box[0], box[3] - box[1])
            return resize_crop(image, box, is_flipped, sides)
        size = find_upright_size(file)
        box, is_flipped = crop.draw_box(*size)
        sides = self.find_sides(box[2] - box[0], box[3] - box[1])
        # A JPEG is decoded at a half, a quarter or an eighth where the crop needs no more pixels.
        across, down = sides[1] / (box[2] - box[0]), sides[0] / (box[3] - box[1])
        reduce_scale(file, max(across, down))
        image = read_pixels(file, mode)
        x, y = image.width / size[0], image.height / size[1]
        right, bottom = min(box[2] * x, image.width), min(box[3] * y, image.height)
        return resize_crop(image, (box[0] * x, box[1] * y, right, bottom), is_flipped, sides)

    def resize_image(self, image: Any, resampling: Any = None) -> Any:
        """Return a picture of Pillow, resized to `sides`; bicubically if nothing else is given."""
        with explain_imports():
            from PIL.Image import Resampling

        resampling = Resampling.BICUBIC if resampling is None else resampling
        height, width = self.find_sides(*image.size)
        resized = (width, height)
        if self.resize == "crop" and self.patch is None:
            factor = max(width / image.width, height / image.height)
            resized = (round(image.width * factor), round(image.height * factor))
        # The crop at the centre; with `exact` it is the full image.
        left, top = (resized[0] - width) // 2, (resized[1] - height) // 2
        if resized[0] * resized[1] > self.max_megapixels * 1e6:
            # The enlarged image would be too large, so only the part inside the crop is enlarged.
            across, down = image.width / resized[0], image.height / resized[1]
            right = min((left + width) * across, image.width)
            bottom = min((top + height) * down, image.height)
            box = (left * across, top * down, right, bottom)
            return image.resize((width, height), resampling, box)
        if resized != image.size:
            image = image.resize(resized, resampling)
        return image.crop((left, top, left + width, top + height))


def _check_aspect_ratio(width: int, height: int) -> None:
    """Check the ratio of an image's sides.

    Raises:
        ValueError: One side is far longer than the other.
    """
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        expected = f"expected sides of at most {MAX_ASPECT_RATIO} to 1"
        raise ValueError(f"{width} x {height} pixels is too narrow, {expected}")


@dataclass(frozen=True)
class ImageAccess:
    """The files that rows of a table may name, because a table is not trusted to name any file.

    Relative paths start at the first folder. Links and `..` are resolved before the check.
    """

    folders: tuple[Path, ...]
    """Folders below which files may be read."""
    prefix: str = ""
    """Prefix of addresses that may be read, such as those of a dataset of the Hub."""
    allow_remote: bool = False
    """Whether other addresses may be read."""

    def read(self, image: Mapping[str, Any] | None) -> bytes:
        """Return the bytes of an image in a table, which contains them or names their file.

        Raises:
            ValueError: The table has no image, or names a file that may not be read.
            OSError: The file cannot be read.
        """
        with explain_imports():
            import fsspec

        if image and image.get("bytes"):
            return bytes(image["bytes"])
        if not image or not image.get("path"):
            raise ValueError("there is no image")
        place = self._locate(str(image["path"]))
        if "://" not in place:
            return read_bytes(Path(place))
        with fsspec.open(place, "rb") as file:
            return bytes(file.read())

    def _locate(self, path: str) -> str:
        """Check a path or an address, and return it with links resolved."""
        # Of a chain such as zip://a.png::photos.zip the last part is what is opened.
        *inner, outer = path.split("::")
        if not all(part.startswith(ARCHIVES) for part in inner):
            raise ValueError(f"is no file below {self.folders[0]}, where images of tables are")
        if "://" not in outer:
            outer = self._resolve(outer)
        elif not (self.prefix and outer.startswith(self.prefix)):
            if not outer.startswith(REMOTE):
                raise ValueError(f"is an address; expected a file below {self.folders[0]}")
            if not self.allow_remote:
                hint = "set data.allow_remote=true if you trust the table, or download the images"
                raise ValueError(f"is an address, which is not fetched; {hint}")
        return "::".join([*inner, outer])

    def _resolve(self, path: str) -> str:
        resolved = Path(self.folders[0], path).resolve()
        if not any(resolved.is_relative_to(folder.resolve()) for folder in self.folders):
            raise ValueError(f"is not below {self.folders[0]}, where images of tables must be")
        return str(resolved)


class ImageFiles(Dataset[FileBatch]):
    """A dataset of image files, fetched by batches of numbers as inputs of a model, in uint8."""

    def __init__(self, paths: Sequence[Path], decoder: ImageDecoder, pack: int | None) -> None:
        self.paths, self.decoder, self.pack = paths, decoder, pack

    def __len__(self) -> int:
        return len(self.paths)

    def __getitems__(self, numbers: Sequence[int]) -> FileBatch:
        images: dict[Path, NDArray[np.uint8]] = {}
        errors: dict[Path, str] = {}
        for path in (self.paths[number] for number in numbers):
            with collect_damage(errors, path):
                images[path] = self.decoder.decode(read_bytes(path))
        inputs = self.decoder.lay_out([*images.values()], self.pack)
        return FileBatch(tuple(images), inputs if len(inputs) > 1 else inputs[0], errors)


def read_image_files(
    paths: Sequence[Path],
    decoder: ImageDecoder,
    batch_size: int,
    workers: int,
    pack: int | None = None,
) -> Iterator[FileBatch]:
    """Yield batches of image files in the order of the paths.

    Args:
        paths: The files.
        decoder: Decodes them.
        batch_size: Number of files in a batch.
        workers: Number of processes that decode.
        pack: Number of tokens of a row that several images share. None: a row for each.
    """
    # The first batch must be waited for in any case: workers are for the batches after it.
    workers = min(workers, -(-len(paths) // batch_size) - 1)
    yield from DataLoader(
        ImageFiles(paths, decoder, pack),
        batch_size,
        num_workers=max(workers, 0),
        collate_fn=keep_batch,
        worker_init_fn=WorkerStart(),
    )


def check_reads_images(spec: DataSpec, channels: int, kind: type[ImageSpec] = ImageSpec) -> None:
    """Check that a model reads images with a number of channels.

    Raises:
        OptionError: It reads other samples, or another number of channels.
    """
    if not isinstance(spec, ImageSpec) or type(spec) is not kind:
        message = f"it reads {kind.noun}, but the model was trained on {spec.noun}"
        raise OptionError("name", message)
    if spec.channels != channels:
        message = f"{channels} channels, but the model was trained on images of {spec.channels}"
        raise OptionError("channels", message)


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Augmentations of training images, in the order of application. By default none is enabled.

    Draws differ between images unless a field states otherwise. If both mixup and cutmix are
    enabled, each batch uses one of them, with equal probability.
    """

    area: Annotated[float, Between(0.01, 1)] = 1.0
    """Random resized crop of the file: smallest fraction of its area, as it is; 1 disables it. The
    images are then decoded, cropped and flipped in the workers, and not cached on disk."""
    crop: Annotated[int, Between(0)] = 0
    """Random crop: pixels of black padding around an image before a crop of its original size."""
    flip: Probability = 0.0
    """Probability of a horizontal flip."""
    randaugment: Annotated[int, Between(0)] = 0
    """Number of operations of RandAugment (arXiv:1909.13719), the same for a batch."""
    magnitude: Annotated[int, Between(0, 30)] = 9
    """Magnitude of the operations of RandAugment."""
    erasing: Probability = 0.0
    """Probability of random erasing: a rectangle is set to the mean (arXiv:1708.04896)."""
    mixup: Annotated[float, Between(0)] = 0.0
    """Alpha of Beta(alpha, alpha) for mixup, one draw per batch (arXiv:1710.09412)."""
    cutmix: Annotated[float, Between(0)] = 0.0
    """Alpha of Beta(alpha, alpha) for cutmix, one draw per image (arXiv:1905.04899)."""

    def __post_init__(self) -> None:
        for key in ("mixup", "cutmix"):
            # torch draws 0.5 from such a distribution, whose draws should be 0 or 1
            if 0 < getattr(self, key) < LEAST_ALPHA:
                message = f"{getattr(self, key):g} is too small to draw from"
                raise OptionError(key, f"{message}; write 0 to disable it, or {LEAST_ALPHA:g}")

    def build_transforms(self) -> tuple[list[Transform], list[Transform]]:
        """Return the transforms of images in [0, 1], and of normalized images."""
        with explain_imports():
            import kornia.augmentation as kornia
            from kornia.augmentation.auto import RandAugment

        # Geometric and colour transforms come before normalization, erasing to the mean after it.
        before: list[Any] = []
        if self.crop:
            before.append(partial(_crop_padded, padding=self.crop))
        # crops of files are flipped where they are decoded
        if self.flip and self.area == 1:
            before.append(kornia.RandomHorizontalFlip(p=self.flip))
        if self.randaugment:
            policy = RandAugment(n=self.randaugment, m=self.magnitude)
            before.append(partial(_apply_policy, policy=policy))
        after = [kornia.RandomErasing(p=self.erasing)] if self.erasing else []
        return before, after

    def mix(self, images: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Mix images. Labels become probabilities [B, classes] if mixing is enabled."""
        use_cutmix = self.cutmix > 0 and (not self.mixup or bool(torch.rand(()) < 0.5))
        if use_cutmix:
            return _apply_cutmix(images, labels, self.cutmix, classes)
        return _apply_mixup(images, labels, self.mixup, classes) if self.mixup else (images, labels)


def _apply_policy(images: Tensor, policy: Any) -> Tensor:
    """Apply operations that a policy of kornia draws, each with probability 1."""
    # The policy's own forward pass also keeps matrices and blends results with their inputs, which
    # takes as long as the operations. The draws and the images are the same.
    for chosen in policy.forward_parameters(images.shape):
        operation = policy.get_submodule(chosen.name)[0].op
        draws = {
            name: draw.to(images.device, non_blocking=True)
            for name, draw in chosen.data[0].data.items()
        }
        matrix = operation.compute_transformation(images, draws, operation.flags)
        images = operation.apply_transform(images, draws, operation.flags, matrix)
    return images


def _apply_mixup(
    images: Tensor, labels: Tensor, alpha: float, classes: int
) -> tuple[Tensor, Tensor]:
    """Mix each image with another image of the batch."""
    # kornia's mixup is not used: it draws uniform weights and ignores alpha.
    weight = torch.distributions.Beta(alpha, alpha, validate_args=False).sample().item()
    order = torch.randperm(len(labels)).to(labels.device, non_blocking=True)
    # weights of a mixture are probabilities of two classes
    targets = F.one_hot(labels, classes).to(torch.float32)
    mixed = torch.lerp(images[order], images, weight)
    return mixed, torch.lerp(targets[order], targets, weight)


def _apply_cutmix(
    images: Tensor, labels: Tensor, alpha: float, classes: int
) -> tuple[Tensor, Tensor]:
    """Paste a rectangle of another image of the batch into each image."""
    # kornia's cutmix is not used: it loops over images. The draws are the same, in its order, whose
    # first is whether to mix at all.
    count, (height, width) = len(labels), images.shape[-2:]
    torch.bernoulli(torch.ones(count))
    order = torch.rand(count).argsort()
    concentration = torch.tensor(alpha)
    beta = torch.distributions.Beta(concentration, concentration, validate_args=False)
    shares = beta.sample((count,))
    x, y = torch.rand(count), torch.rand(count)

    side = (1 - shares).sqrt()
    across, down = (side * width).floor(), (side * height).floor()
    left = torch.minimum((x * (width - across + 1)).floor(), width - across)
    top = torch.minimum((y * (height - down + 1)).floor(), height - down)
    own_share = 1 - across * down / (width * height)  # [B]
    bounds = torch.stack([left, left + across, top, top + down, own_share])
    bounds = bounds.to(images.device, non_blocking=True)
    left, right, top, bottom, own_share = bounds[:, :, None].unbind()
    columns, rows = (torch.arange(float(n), device=images.device) for n in (width, height))
    is_pasted = ((rows >= top) & (rows < bottom))[:, None, :, None]
    is_pasted = is_pasted & ((columns >= left) & (columns < right))[:, None, None, :]

    order = order.to(images.device, non_blocking=True)
    targets = F.one_hot(labels, classes).to(torch.float32)
    mixed = torch.where(is_pasted, images[order], images)
    return mixed, torch.lerp(targets[order], targets, own_share)


def _crop_padded(images: Tensor, padding: int) -> Tensor:
    """Pad images with black and crop each at random to its former size."""
    # kornia's crop is not used: it loops over images. The draws are the same.
    count, (height, width) = len(images), images.shape[-2:]
    corners = (torch.rand(2, count) * (2 * padding + 1)).floor().long()
    left, top = corners.to(images.device, non_blocking=True)
    padded = F.pad(images, [padding] * 4)
    rows = top[:, None] + torch.arange(height, device=images.device)  # [B, height]
    columns = left[:, None] + torch.arange(width, device=images.device)  # [B, width]
    batch = torch.arange(count, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


class ImageTransform:
    """A transform that normalizes images to (image - mean) / std and augments training images.

    `mean` and `std` are in units of white, one number for all channels or one for each.
    """

    def __init__(
        self, channels: int, mean: Sequence[float], std: Sequence[float], augment: Augmentation
    ) -> None:
        for key, numbers in (("mean", mean), ("std", std)):
            if len(numbers) not in (1, channels):
                message = f"{len(numbers)} numbers for {channels} channels; give 1 or {channels}"
                raise OptionError(key, message)
        if min(std) <= 0:
            raise OptionError("std", f"{min(std):g} is not positive")
        # in the precision in which images are normalized
        range_of_white = torch.tensor([[0.0], [1.0]])
        if not ((range_of_white - torch.tensor(mean)) / torch.tensor(std)).isfinite().all():
            message = f"images minus {max(mean, key=abs):g}, over {min(std):g}, are infinite"
            raise OptionError("std", f"{message} in float32")
        self.mean, self.std, self.augment = tuple(mean), tuple(std), augment
        self._transforms: tuple[list[Transform], list[Transform]] | None = None

    def __call__(
        self, images: Tensor, labels: Tensor, *, training: bool, classes: int
    ) -> tuple[Tensor, Tensor]:
        """Transform a batch.

        Args:
            images: Images, uint8 [B, C, height, width].
            labels: Labels [B].
            training: Whether to augment.
            classes: Number of classes.

        Returns:
            Images, float32 [B, C, height, width], and labels [B], or [B, classes] after mixing.
        """
        # uint8 travels to the device, where it becomes float32 from 0 (black) to 1 (white).
        images = images.to(torch.float32) / 255
        if not training or self.augment == Augmentation():
            return self._normalize(images), labels
        if self._transforms is None:
            # Not earlier, because kornia takes seconds to import.
            self._transforms = self.augment.build_transforms()
        before, after = self._transforms
        for transform in before:
            images = transform(images)
        images = self._normalize(images)
        for transform in after:
            images = transform(images)
        return self.augment.mix(images, labels, classes)

    def denormalize(self, images: Tensor) -> Tensor:
        """Convert normalized images [B, C, height, width] back to units of white."""
        mean, std = self._get_statistics(images)
        return images * std + mean

    def _normalize(self, images: Tensor) -> Tensor:
        mean, std = self._get_statistics(images)
        return (images - mean) / std

    def _get_statistics(self, images: Tensor) -> tuple[Tensor, Tensor]:
        # one number for all channels becomes one for each
        channels = images.shape[1]
        numbers = [channels // len(statistic) * statistic for statistic in (self.mean, self.std)]
        statistics = torch.tensor(numbers, dtype=images.dtype)
        mean, std = statistics.to(images.device, non_blocking=True)[..., None, None]
        return mean, std


@contextmanager
def isolate_rng(*numbers: int) -> Iterator[None]:
    """Seed the CPU's random state from these numbers, and restore it afterwards.

    Augmentation is then independent of the random numbers that a model draws. Otherwise two models
    with different encodings would be trained on different images.
    """
    seed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed >> np.uint64(1)))
        yield
