"""Checks that the precision in which a model reads numbers can hold them and their differences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RESOLUTION = 1e-5
"""Largest rounding of coordinates to float32, relative to the extent of a set along an axis."""


@dataclass(frozen=True)
class NotFinite:
    """The first number of an array that is not finite in a precision.

    Attributes:
        index: Its index.
        problem: What is wrong with it.
    """

    index: tuple[int, ...]
    problem: str


def find_not_finite(values: NDArray[Any] | Tensor, dtype: torch.dtype) -> NotFinite | None:
    """Find the first number that a precision cannot hold.

    Args:
        values: Numbers in any precision, such as float64 in a file.
        dtype: The precision in which they are used.

    Returns:
        The number; None if all are finite.
    """
    numbers = torch.as_tensor(values)
    if not numbers.is_floating_point() or not numbers.numel():
        return None
    # NaN is the minimum and the maximum of numbers that include it
    if torch.stack(numbers.aminmax()).to(dtype).isfinite().all():
        return None
    index = tuple((~numbers.to(dtype).isfinite()).nonzero()[0].tolist())
    value = float(numbers[index])
    name = str(dtype).removeprefix("torch.")
    fault = f"is infinite in {name}" if math.isfinite(value) else "is not a finite number"
    return NotFinite(index, f"{value:g} {fault}")


def explain_lost_differences(pos: NDArray[Any], noun: str = "coordinates") -> str:
    """Return why float32 cannot tell numbers [N, P] apart, such as Unix times; else nothing.

    Args:
        pos: The numbers.
        noun: What they are.
    """
    if not len(pos):
        return ""
    extents, largest = np.ptp(pos, axis=0), np.abs(pos).max(0)
    steps = np.spacing(largest.astype(np.float32))
    for extent, most, step in zip(extents, largest, steps, strict=True):
        if extent > 0 and step > RESOLUTION * extent:
            near = f"{noun} up to {most:g} are {extent:g} apart at most"
            return f"{near}, and float32 has steps of {step:g} there"
    return ""
