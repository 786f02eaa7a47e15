"""Attention with an encoding as functions of projected heads."""

from zoo.attention.backends.fused import block_mask
from zoo.attention.functional import attend, embed, score_mod, scores, weights

__all__ = ["attend", "block_mask", "embed", "score_mod", "scores", "weights"]
