"""Functions of numbers and rows that several formulas have."""

from __future__ import annotations

from torch import Tensor


def softmax(scores: Tensor) -> Tensor:
    """Along each row; a row that sees nothing gives nothing."""
    powers = scores.exp()
    return powers / powers.sum(-1, keepdim=True).clamp(min=1e-300)


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def softplus(x: Tensor) -> Tensor:
    return (1 + x.exp()).log()
