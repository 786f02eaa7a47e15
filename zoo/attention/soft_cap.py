"""The soft cap of scores and logits: c tanh(s / c) (Gemma 2, arXiv:2408.00118)."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.errors import OptionError
from zoo.options import Between

SOFTCAP = Between(1e-12, 1e30)
"""Bounds of the option `softcap`."""


def apply_soft_cap(scores: Tensor, bound: float) -> Tensor:
    """Return scores between -bound and bound: bound tanh(scores / bound)."""
    return bound * torch.tanh(scores / bound)


def check_softcap(softcap: float) -> None:
    """Check that the bound of scores is a positive number.

    Raises:
        OptionError: It is not.
    """
    if isinstance(softcap, bool) or not isinstance(softcap, int | float):
        raise OptionError("softcap", f"softcap is {type(softcap).__name__}, not a number")
    if not 0 < softcap < float("inf"):
        raise OptionError("softcap", f"softcap {softcap} is not positive and finite")
    if not SOFTCAP.low <= softcap <= SOFTCAP.high:
        raise OptionError("softcap", f"softcap {softcap} is not {SOFTCAP}")
