"""Images of segmented samples for the page: the image, its mask, and the predicted classes."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import torch
from torch import Tensor

from zoo.diagnosis.report import DiagnosedRun, SegmentedImage
from zoo.packages import explain_imports
from zoo.reporting.heatmaps import to_data_address

MAX_SAMPLES = 8
"""Samples of each run on the page."""
MAX_SIDE = 256
"""Pixels along a side; of larger images every n-th row and column is shown."""
MAX_LEGEND = 24
"""Classes that a legend names."""
UNKNOWN = (255, 255, 255)
"""The colour of pixels without a class."""
FIRST = (40, 40, 40)
"""The colour of class 0, which is often the background."""


@dataclass(frozen=True)
class ClassMap:
    """A row of pictures about a sample.

    Args:
        title: The sample, with the run if there are several.
        pictures: {name: data URL} of the image, its mask and the prediction.
        legend: Colour and name of each class that occurs in them.
    """

    title: str
    pictures: dict[str, str]
    legend: list[tuple[str, str]]


def build_class_maps(runs: Sequence[DiagnosedRun]) -> list[ClassMap]:
    """Return the rows of all runs; runs on the same samples follow each other."""
    count = max((len(run.segmented) for run in runs), default=0)
    return [
        _build_map(run, run.segmented[number], len(runs) > 1)
        for number in range(min(count, MAX_SAMPLES))
        for run in runs
        if number < len(run.segmented)
    ]


def _build_map(run: DiagnosedRun, sample: SegmentedImage, names_run: bool) -> ClassMap:
    every = -(-max(sample.mask.shape) // MAX_SIDE)
    mask, predicted = (one[::every, ::every] for one in (sample.mask, sample.predicted))
    colours = choose_colours(len(run.classes))
    shown = torch.unique(torch.cat([mask.flatten(), predicted.flatten()])).tolist()
    legend = [
        ("#{:02x}{:02x}{:02x}".format(*colours[number]), run.classes[number])
        for number in shown
        if 0 <= number < len(run.classes)
    ]
    return ClassMap(
        title=f"{run.name}: {sample.title}" if names_run else sample.title,
        pictures={
            "image": _encode(sample.picture[::every, ::every]),
            "mask": _encode(colour_classes(mask, colours)),
            "prediction": _encode(colour_classes(predicted, colours)),
        },
        legend=legend if len(legend) <= MAX_LEGEND else [],
    )


def choose_colours(classes: int) -> list[tuple[int, int, int]]:
    """Return a colour for each class: dark grey for the first, distinct hues for the others."""
    found = [FIRST]
    for number in range(classes - 1):
        # three levels of brightness tell classes of similar hues apart
        brightness = (0.95, 0.75, 0.55)[number % 3]
        red, green, blue = colorsys.hsv_to_rgb(number / max(classes - 1, 1), 0.75, brightness)
        found.append((round(255 * red), round(255 * green), round(255 * blue)))
    return found


def colour_classes(numbers: Tensor, colours: Sequence[tuple[int, int, int]]) -> Tensor:
    """Return a picture uint8 [height, width, 3] of class numbers [height, width]."""
    table = torch.tensor([*colours, UNKNOWN], dtype=torch.uint8)
    known = (numbers >= 0) & (numbers < len(colours))
    return table[torch.where(known, numbers, len(colours))]


def _encode(picture: Tensor) -> str:
    with explain_imports():
        from PIL import Image

    file = BytesIO()
    Image.fromarray(picture.contiguous().numpy()).save(file, "PNG", optimize=True)
    return to_data_address(file.getvalue(), "png")
