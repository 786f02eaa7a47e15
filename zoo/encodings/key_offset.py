"""Keys that take channels of the one before (github.com/KellerJordan/modded-nanogpt/pull/169)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding, Tokens
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class KeyOffset(Encoding):
    """the last `fraction` of the channels of k_j are those of k_(j-1), after rotations

    A query that matches the token before j there attends to j itself: one layer can copy what
    followed (an induction head). The first token of a document has 0 in these channels; with
    `first` own it keeps its own, as in the published code. Tokens without a position, and padding,
    keep their keys and are passed over.

    Args:
        fraction: Share of the channels that are those of the token before.
        first: What the first token of a document has there: zeros, or its own channels.
    """

    part = "keys"
    reads_positions = False
    shift_invariant, causal_only, handles_special_tokens = True, True, True
    reads_keys, lookback = True, 1

    def __init__(
        self,
        dims: Dims,
        *,
        fraction: Annotated[float, Between(0, 1)] = 0.5,
        first: Literal["zero", "own"] = "zero",
    ) -> None:
        super().__init__(dims)
        width = round(fraction * dims.head_dim, 6)
        if width % 1:
            message = f"{fraction} of the head dim {dims.head_dim}"
            raise OptionError("fraction", f"{message} is not an integer number of channels")
        self.width, self.first = int(width), first

    def modify(self, call: AttentionCall) -> AttentionCall:
        if call.k.shape[-1] != self.dims.head_dim:
            reason = "moves channels of keys, and an encoding before it has made heads wider"
            raise OptionError("encoding", f"{self.name} {reason}")
        unmoved, moved = call.k.split([self.dims.head_dim - self.width, self.width], dim=-1)
        return call.replace(k=torch.cat([unmoved, self._offset(moved, call.keys)], dim=-1))

    def _offset(self, k: Tensor, tokens: Tokens) -> Tensor:
        """Return for each token the keys [B, H, M, width] of the token before it."""
        if tokens.document is None and tokens.has_position is None:
            shifted = F.pad(k, (0, 0, 1, 0))[:, :, : k.shape[2]]
            if self.first == "zero":
                return shifted
            is_first = torch.arange(k.shape[2], device=k.device) == 0
            return torch.where(is_first[:, None], k, shifted)
        before, counts, is_first = _find_before(tokens)
        initial = k if self.first == "own" else torch.zeros_like(k)
        index = before[:, None, :, None].expand(k.shape[0], k.shape[1], -1, k.shape[-1])
        out = torch.where(is_first[:, None, :, None], initial, k.gather(2, index))
        return torch.where(counts[:, None, :, None], out, k)


def _find_before(tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """Find the token before each, among those that are no padding and have a position.

    Returns:
        The index of the token before int [1|B, M], whether a token counts itself, and whether it
        is the first of its document, bool [1|B, M] each.
    """
    present = (mask for mask in (tokens.valid, tokens.has_position) if mask is not None)
    counts = next(present)
    for mask in present:
        counts = counts & mask
    indices = torch.arange(counts.shape[1], device=counts.device)
    latest = torch.where(counts, indices, -1).cummax(1).values
    before = F.pad(latest, (1, 0), value=-1)[:, : latest.shape[1]]
    is_first, before = before < 0, before.clamp(min=0)
    if tokens.document is not None:
        document = tokens.document.expand(len(before), -1)
        before = before.expand(len(document), -1)
        is_first = is_first | (document.gather(1, before) != document)
    return before, counts, is_first
