"""The batches of text and points that data sources yield and tasks read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

# Only annotations need them.
if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


class PointSample(NamedTuple):
    """One set of points with its target."""

    x: NDArray[Any]
    """Features [N, F]."""
    pos: NDArray[Any]
    """Coordinates [N, P]."""
    target: int | NDArray[Any]
    """A class, or the numbers to predict [T]."""


class PointBatch(NamedTuple):
    """A batch of sets of points."""

    x: Tensor
    """Features [B, N, F]."""
    pos: Tensor
    """Coordinates [B, N, P], in the units of the data."""
    mask: Tensor
    """Bool [B, N], False for padding."""
    target: Tensor
    """Classes int64 [B], or the numbers to predict [B, T] in the units of the data."""


class TextBatch(NamedTuple):
    """A batch of token windows."""

    inputs: Tensor
    """Tokens, int64 [B, N]."""
    targets: Tensor
    """Next tokens, int64 [B, N]; -100 for tokens without a target."""
    documents: Tensor | None = None
    """Document numbers, int64 [B, N], -1 for padding. None: one document without padding."""
    target_bytes: Tensor | None = None
    """Length of each target in bytes of UTF-8, int64 [B, N]. None: all tokens have one unit."""
    answer_depths: Tensor | None = None
    """Place of each answer in its text, float [B], from 0 (its start) to 1 (right before the
    question). None: it has no single place."""
