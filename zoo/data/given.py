"""Files that are given to a trained model, read as the samples of a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple


class Given(NamedTuple):
    """A batch made of files. `faults` says of each that could not be read what is wrong with it."""

    paths: tuple[Path, ...]  # those that `batch` is made of: one for each image, or one for all windows of a text
    batch: Any  # images [B, C, H, W] as a model has them, or Windows
    faults: dict[Path, str]
