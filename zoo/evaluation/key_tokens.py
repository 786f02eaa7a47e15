"""LongPPL: the perplexity of tokens that need far context (Fang et al. 2024, arXiv:2410.23771)."""

from __future__ import annotations

import math

from torch import Tensor

GAIN = 2.0
"""Nats by which far context lowers the loss of a key token, at least: alpha of the paper."""
HIGHEST_LOSS = 2.0
"""Loss of a key token with far context, at most, in nats: minus beta of the paper."""


def find_key_tokens(long_loss: Tensor, short_loss: Tensor, is_target: Tensor) -> Tensor:
    """Return which tokens are key tokens, bool [W, N].

    Args:
        long_loss: Losses of an evaluating model with all context, in nats [W, N].
        short_loss: Its losses with a short context [W, N].
        is_target: Which tokens are predicted [W, N].
    """
    return is_target & (short_loss - long_loss > GAIN) & (long_loss < HIGHEST_LOSS)


def compute_long_perplexity(loss: Tensor, is_key: Tensor) -> float | None:
    """Return exp of the mean loss of key tokens; None without one.

    Args:
        loss: Losses of the model that is judged, in nats [W, N].
        is_key: Which tokens are key tokens [W, N].
    """
    return math.exp(float(loss[is_key].double().mean())) if is_key.any() else None
