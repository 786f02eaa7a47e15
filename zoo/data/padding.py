"""Padding of points, texts and images of unequal sizes to the largest of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.data.batches import PointBatch, PointSample


def pad_points(samples: Sequence[PointSample]) -> PointBatch:
    """Stack sets of points, padded with zeros to the largest one."""
    counts = [len(sample.x) for sample in samples]
    most = max(counts, default=0)
    features, axes = (part.shape[1] for part in samples[0][:2])
    x = np.zeros((len(samples), most, features), np.float32)
    pos = np.zeros((len(samples), most, axes), np.float32)
    for row, sample in enumerate(samples):
        x[row, : counts[row]], pos[row, : counts[row]] = sample.x, sample.pos
    mask = np.arange(most) < np.array(counts)[:, None]
    target = np.stack([np.asarray(sample.target) for sample in samples])
    if target.dtype.kind == "f":
        target = target.astype(np.float32)
    return PointBatch(*map(torch.from_numpy, (x, pos, mask, target)))


def pad_texts(samples: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Return texts [B, N] padded with -1, and labels [B]."""
    texts = [torch.as_tensor(tokens) for tokens, _ in samples]
    padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=-1)
    return padded, torch.as_tensor([int(label) for _, label in samples])


def stack_padded(arrays: Sequence[NDArray[Any]], fill: int) -> Tensor:
    """Stack arrays [.., H, W] of several sizes in the upper left corners of one size.

    Args:
        arrays: The arrays.
        fill: The value of padding.
    """
    sides = [max(array.shape[axis] for array in arrays) for axis in (-2, -1)]
    sample = arrays[0]
    stacked = np.full((len(arrays), *sample.shape[:-2], *sides), fill, sample.dtype)
    for place, array in zip(stacked, arrays, strict=True):
        place[..., : array.shape[-2], : array.shape[-1]] = array
    return torch.from_numpy(stacked)
