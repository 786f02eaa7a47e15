"""A short convolution over the tokens of a document, channel by channel."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from zoo.attention import precise


def convolved(x: Tensor, weights: Tensor, document: Tensor | None) -> Tensor:
    """sum_s weights_s x_{t-s} over the tokens [1|B, N, D] of t's own document; weights [S, D], the token itself first.

    In at least float32. `document` int [1|B, M] ends where x ends; None where all tokens are of one.
    """
    x, n = precise(x), x.shape[1]
    out = precise(weights[0]) * x
    for step in range(1, len(weights)):
        before = precise(weights[step]) * _later(x, step)
        if document is not None:
            own = document[:, -n:]
            before = before * (_later(own, step) == own)[..., None]
        out = out + before
    return out


def _later(tokens: Tensor, step: int) -> Tensor:
    """Each token [1|B, N, ..] where the one `step` tokens after it stands; zeros at the beginning."""
    beyond = (0, 0) * (tokens.dim() - 2)
    return F.pad(tokens, (*beyond, step, 0))[:, : tokens.shape[1]]
