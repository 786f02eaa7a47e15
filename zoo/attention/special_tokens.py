"""Special tokens, such as CLS and registers, have no position: encodings leave them unchanged.

They are not rotated, nothing is added to their states, and their pairs get no bias. An encoding
that treats such tokens in its own way declares `handles_special_tokens`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention.call import AttentionCall, Index, Span, TransformScores, restrict_bias
from zoo.attention.coordinates import get_known_range, set_known_range
from zoo.attention.encoding import Encoding
from zoo.attention.tokens import Tokens, pick


def place_at_origin(tokens: Tokens) -> Tokens:
    """Set the coordinates of tokens without a position to 0."""
    if tokens.has_position is None:
        return tokens
    pos = torch.where(tokens.has_position[..., None], tokens.pos, 0.0)
    if pos.shape[-1] == 1 and (limits := get_known_range(tokens.pos)) is not None:
        set_known_range(pos, min(0.0, limits[0]), max(0.0, limits[1]))
    return tokens.replace(pos=pos)


def restore_states(encoding: Encoding, old: Tokens, new: Tokens) -> Tokens:
    """Restore the old states of tokens without a position."""
    if new.x is old.x or encoding.handles_special_tokens or old.has_position is None:
        return new
    return new.replace(x=torch.where(old.has_position[..., None], new.x, old.x))


def restore_heads(encoding: Encoding, old: Tensor, new: Tensor, tokens: Tokens) -> Tensor:
    """Restore the old heads [B, H, N, K] of tokens without a position."""
    # At the origin a rotation changes nothing: `place_at_origin` put these tokens there.
    is_right = encoding.handles_special_tokens or encoding.identity_at_zero
    if new is old or is_right or tokens.has_position is None:
        return new
    return torch.where(tokens.has_position[:, None, :, None], new, old)


def restrict_to_positions(old: AttentionCall, new: AttentionCall) -> AttentionCall:
    """Restrict the changes of an encoding to pairs of tokens that both have a position."""
    rows, columns = new.queries.has_position, new.keys.has_position
    if rows is None or columns is None or new is old:
        return new

    def have_positions(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return pick(rows, b, i) & pick(columns, b, j)

    # Biases that were in the call before belong to other encodings and keep their values.
    earlier = _identify_biases(old)
    biases = [b if id(b) in earlier else restrict_bias(b, have_positions) for b in new.biases]
    # Zero rows of the factors give the bias 0, so that it keeps its low rank.
    low_rank_biases = []
    for pair in new.low_rank_biases:
        left, right = pair
        if id(pair) not in earlier:
            pair = left * rows[:, None, :, None], right * columns[:, None, :, None]
        low_rank_biases.append(pair)
    changes: dict[str, object] = {
        "biases": tuple(biases),
        "low_rank_biases": tuple(low_rank_biases),
    }

    transform, extra_output = new.transform_scores, new.extra_output
    if transform is not None and transform is not old.transform_scores:
        changes["transform_scores"] = _restrict_transform(transform, old, new, have_positions)
    if extra_output is not None and extra_output is not old.extra_output:
        changes["extra_output"] = lambda weights, span: extra_output(
            weights * new.evaluate(have_positions, span), span
        )
    return new.replace(**changes)


def _restrict_transform(
    transform: TransformScores, old: AttentionCall, new: AttentionCall, pairs: Index
) -> TransformScores:
    """Transform only the scores of `pairs`; others get the biases that the transform consumed."""
    unconsumed = _identify_biases(new)
    consumed = old.replace(
        biases=tuple(bias for bias in old.biases if id(bias) not in unconsumed),
        low_rank_biases=tuple(pair for pair in old.low_rank_biases if id(pair) not in unconsumed),
    )

    def transform_some(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
        bias = consumed.sum_biases(span)
        unchanged = scores if bias is None else scores + bias
        return torch.where(new.evaluate(pairs, span), transform(scores, visible, span), unchanged)

    return transform_some


def _identify_biases(call: AttentionCall) -> set[int]:
    return {id(bias) for bias in (*call.biases, *call.low_rank_biases)}
