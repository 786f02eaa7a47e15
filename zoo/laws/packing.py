"""Laws of batches: packed documents, padding, shared key heads and tokens without a position."""

from __future__ import annotations

import torch

from zoo import api
from zoo.attention.encoding import Encoding
from zoo.attention.tokens import Tokens
from zoo.laws.attention_stack import AttentionStack
from zoo.laws.case import BATCH, HEADS, TOKENS, Case, packed_documents, position_mask
from zoo.laws.law import Recorder, law, require


@law("Documents packed in one row give what each gives by itself.")
def packed_documents_are_apart(case: Case, recorder: Recorder) -> None:
    pos, document = case.positions().clone(), packed_documents()[0]
    for number in (1, 2):  # positions of each document begin at the first again
        pos[document == number] = case.positions()[: int((document == number).sum())]
    for causal in case.causal_modes:
        stack, x = AttentionStack(case, causal=causal), case.states()
        packed = stack(x, pos, document=document)
        for number in range(3):
            own = document == number
            what = "the output of a document among others, against it alone"
            recorder.require_close(packed[:, own], stack(x[:, own], pos[own]), what)


@law("Padding before or after a text changes nothing.")
def padding_changes_nothing(case: Case, recorder: Recorder) -> None:
    for causal in case.causal_modes:
        stack, x, pos = AttentionStack(case, causal=causal), case.states(), case.positions()
        for real in (slice(3, TOKENS), slice(0, TOKENS - 3), slice(2, TOKENS - 2)):
            document = torch.full((TOKENS,), -1)
            document[real] = 0
            padded = stack(x, pos, document=document)[:, real]
            what = "the output of a text between padding, against it alone"
            recorder.require_close(padded, stack(x[:, real], pos[real]), what)


@torch.no_grad()
def _copy_key_head(one_head: AttentionStack, repeated: AttentionStack) -> None:
    """Copy the parameters of a stack with one key head to each key head of another."""
    parameters = one_head.state_dict()
    for name, value in repeated.state_dict().items():
        one = parameters[name]
        axes = [axis for axis in range(value.dim()) if value.shape[axis] != one.shape[axis]]
        shapes = f"{tuple(one.shape)} with one key head, {tuple(value.shape)} with two"
        require(len(axes) < 2, f"{name} is {shapes}, which differ in more than the number of heads")
        value.copy_(torch.cat([one] * HEADS, axes[0]) if axes else one)


def _exempt_unshared(case: Case) -> str:
    return "" if case.supports_shared_keys else "it needs a key head for each query head"


@law("Sharing a key head between query heads equals repeating it.", _exempt_unshared)
def shared_key_heads_equal_repeated_ones(case: Case, recorder: Recorder) -> None:
    where = (case.positions(), position_mask(), packed_documents())
    for causal in case.causal_modes:
        shared = AttentionStack(case.with_one_kv_head, causal=causal)
        repeated = AttentionStack(case, causal=causal)
        _copy_key_head(shared, repeated)
        x = case.states()
        what = "the output with one key head for all"
        recorder.require_close(shared(x, *where), repeated(x, *where), what)


@law("Coordinates of a token without a position are not read.")
def the_position_of_a_special_token_is_not_read(case: Case, recorder: Recorder) -> None:
    has_position, pos = position_mask(), case.positions()
    moved = torch.where(has_position[:, None], pos, pos + 7)
    for causal in case.causal_modes:
        stack, x = AttentionStack(case, causal=causal), case.states()
        expected = stack(x, pos, has_position)
        what = "the output where coordinates of tokens without a position change"
        recorder.require_close(stack(x, moved, has_position), expected, what)


def _replaces_default(link: Encoding) -> bool:
    """Return True for an own treatment of special tokens (TUPE's reset, PoPE's lengths)."""
    own = type(link)
    overrides = (
        own.modify is not Encoding.modify or own.transform_query is not Encoding.transform_query
    )
    return link.handles_special_tokens and overrides


def _exempt_handled(case: Case) -> str:
    handled = any(map(_replaces_default, case.facts))
    return "it handles tokens without a position itself" if handled else ""


@law("Tokens without a position are not rotated, biased or added to.", _exempt_handled)
def special_tokens_are_left_alone(case: Case, recorder: Recorder) -> None:
    has_position, pos = position_mask(), case.positions()
    special, both = ~has_position, has_position[:, None] & has_position
    for causal in case.causal_modes:
        chain, x = AttentionStack(case, causal=causal, layers=1).first, case.states()
        q, k = torch.randn(2, BATCH, HEADS, TOKENS, case.head_dim, dtype=x.dtype).unbind()
        scores = api.scores(chain, q, k, pos, x=x, has_position=has_position, causal=causal)
        plain = api.scores(api.encoding([], case.dims), q, k, pos, causal=causal)
        tokens = chain.prepare(chain.embed(Tokens.at(x, pos, has_position)))
        query, key = chain.transform_query(q, tokens), chain.transform_key(k, tokens)
        unbiased = query @ key.mT * case.head_dim**-0.5

        what = "scores of pairs of tokens without a position, against plain products"
        pairs = scores[..., special, :][..., special]
        recorder.require_close(pairs, plain[..., special, :][..., special], what)
        some = ~both & scores.isfinite()
        what = "scores of pairs with a token without a position, against no bias"
        recorder.require_close(scores[some], unbiased[some], what)
        what = "states of tokens without a position, against those given"
        recorder.require_close(tokens.x[:, special], x[:, special], what)
