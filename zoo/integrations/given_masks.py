"""Masks of pairs of tokens that the caller of a model of transformers gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.errors import OptionError
from zoo.integrations.equipment import Equipment, read_documents


def read_visible(mask: Tensor) -> Tensor:
    """Convert a mask of transformers, bool or additive, to True where a query may attend."""
    # An additive mask has the smallest number of its dtype at hidden pairs.
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def follows_mask(mask: Any, equipment: Equipment, seen: int) -> bool:
    """Check a mask of pairs that the caller of a model gave.

    Args:
        mask: The mask, bool or additive [B, 1, N, M].
        equipment: The encodings.
        seen: Number of keys before the first query.

    Returns:
        Whether the mask alone says what is visible, instead of narrowing a causal mask.

    Raises:
        OptionError: The mask differs between heads or adds numbers other than 0 and the
            smallest, or an encoding needs a causal mask and this one shows
            later tokens.
    """
    if not isinstance(mask, Tensor) or mask.dim() != 4 or mask.shape[1] != 1:
        problem = "an equipped model accepts a mask of tokens [B, N] or of pairs [B, 1, N, M]"
        raise OptionError("attention_mask", problem)
    if mask.dtype != torch.bool:
        is_plain = ((mask == 0) | (mask <= torch.finfo(mask.dtype).min / 2)).all()
        problem = "an equipped model accepts masks of 0 and the smallest number, not other biases"
        _require(is_plain, OptionError("attention_mask", problem))
    if not equipment.causal or mask.shape[2] == 1:
        return False
    # What transforms only queries and keys by themselves is defined under every mask.
    if not any(chain.modifies_calls or chain.causal_only for chain in equipment.chains):
        return True
    shown = read_visible(mask)[..., : seen + mask.shape[2]].triu(1 + seen)
    names = ", ".join(equipment.keys())
    problem = f"the mask shows later tokens, which {names} cannot encode in a causal model"
    _require(~shown.any(), OptionError("attention_mask", f"{problem}; rope can"))
    return False


def find_documents(visible: Tensor, equipment: Equipment, is_cached: bool) -> Tensor:
    """Find the documents of tokens in a mask: one begins where a token does not see the last one.

    Args:
        visible: True where a query may attend to a key [B, N, M], in a causal model. The last N
            keys are those of the queries.
        equipment: The encodings.
        is_cached: Whether a cache stores the tokens. It continues one document.

    Returns:
        Document numbers int [B, N], -1 for tokens that nobody sees.

    Raises:
        OptionError: A token sees tokens of an earlier document, or a cache would store several, and
            an encoding sums over documents.
    """
    document, is_cut = read_documents(visible, is_mutual=False)
    is_valid = document >= 0
    if not any(chain.causal_only for chain in equipment.chains):
        return document

    names = ", ".join(equipment.keys())
    if is_cached:
        problem = f"by the mask, a token does not see the last one before it; {names} needs it"
        remedy = "pass use_cache=False if the mask keeps texts apart"
        _require(~is_cut.any(), OptionError("attention_mask", f"{problem}: {remedy}"))
        return torch.where(is_valid, 0, -1)
    sees_other = visible & (document[:, :, None] != document[:, None]) & is_valid[:, :, None]
    problem = f"by the mask, a token sees some tokens but not the last one before it: {names}"
    _require(~sees_other.any(), OptionError("attention_mask", f"{problem} cannot skip tokens"))
    return document


def _require(condition: Tensor, error: OptionError) -> None:
    """Raise an error unless a bool tensor is True; in a compiled model, torch raises it."""
    if condition.is_meta:
        return
    if torch.compiler.is_compiling():
        torch._assert_async(condition, str(error))
    elif not condition:
        raise error
