"""Intervals of means over samples."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zoo.packages import explain_imports

LEVEL = 0.95
"""The share of intervals that contain the mean of all samples that there could be."""


class MeanInterval(NamedTuple):
    """Means over samples with the ends of their intervals; the ends are NaN if there are none."""

    mean: Tensor
    low: Tensor
    high: Tensor


def estimate_mean(
    values: Tensor, weights: Tensor | None = None, level: float = LEVEL
) -> MeanInterval:
    """Estimate the weighted mean of values over samples, with a t interval.

    The standard error is that of a ratio of two sums over samples (Cochran 1977, Sampling
    Techniques, section 6.4).

    Args:
        values: Values [..., B, X] of B samples.
        weights: Weights [B] of the samples, such as their numbers of targets; None: equal ones.
        level: Probability that the interval contains the mean.

    Returns:
        Mean and ends of the interval, [..., X] each; no interval for fewer than three samples.
    """
    with explain_imports():
        from scipy.special import stdtrit

    count = values.shape[-2]
    weights = values.new_ones(count) if weights is None else weights.to(values)
    shares = (weights / weights.sum())[:, None]
    mean = (shares * values).sum(-2)
    # Samples without a target have no value, and no weight.
    counted = int((weights > 0).sum())
    if counted < 3:
        absent = torch.full_like(mean, torch.nan)
        return MeanInterval(mean, absent, absent)
    errors = shares * (values - mean[..., None, :])
    deviation = (errors.square().sum(-2) * (counted / (counted - 1))).sqrt()
    width = float(stdtrit(counted - 1, (1 + level) / 2)) * deviation
    return MeanInterval(mean, mean - width, mean + width)
