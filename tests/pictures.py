"""Little tables of made-up images."""

import io
from pathlib import Path

import numpy as np


def encode(number: int, size: tuple[int, int] = (8, 8), kind: str = "PNG") -> bytes:
    """A file of an image that is noise, drawn from a number."""
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def parquet(
    path: Path,
    count: int,
    *,
    size: tuple[int, int] = (8, 8),
    classes: int = 4,
    broken: tuple[int, ...] = (),
    first: int = 0,
) -> Path:
    """A parquet file of images with labels, drawn from the numbers from `first` on; the `broken` ones are no images."""
    import datasets
    from datasets import ClassLabel, Dataset, Features, Image

    datasets.disable_progress_bars()
    images = [b"no image" if n in broken else encode(first + n, size) for n in range(count)]
    rows = {
        "image": [{"bytes": image, "path": f"{n}.png"} for n, image in enumerate(images)],
        "label": [n % classes for n in range(count)],
    }
    names = [f"class {n}" for n in range(classes)]
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(rows, Features(image=Image(), label=ClassLabel(names=names))).to_parquet(path)
    return path


def pairs(
    folder: Path,
    count: int,
    *,
    split: str = "",
    mask: str = "masks",
    size: tuple[int, int] = (40, 32),
    classes: int = 4,
) -> Path:
    """Two folders of noise and of masks with stripes of classes 0 to `classes`, the PNG files with a palette."""
    from PIL import Image

    for number in range(count):
        path = folder / "images" / split / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number, size))
        stripes = (np.arange(size[0]) + number) // 8 % classes
        indexed = Image.fromarray(np.tile(stripes.astype(np.uint8), (size[1], 1)), mode="P")
        indexed.putpalette(range(3 * classes))
        own = folder / mask / split / f"{number}.png"
        own.parent.mkdir(parents=True, exist_ok=True)
        indexed.save(own)
    return folder
