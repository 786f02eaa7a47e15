"""Laws about shifts, permutations, documents, key heads and tokens without a position."""

from __future__ import annotations

import torch

from zoo.attention import functional
from zoo.attention.chain import encoding
from zoo.attention.encoding import Encoding
from zoo.attention.tokens import Tokens
from zoo.laws.attention_stack import AttentionStack
from zoo.laws.case import BATCH, TOKENS, Case, packed_documents, position_mask
from zoo.laws.law import NOTICEABLE, Recorder, exempt_far, law, relative_error, require


def _exempt_variant(case: Case) -> str:
    if case.temperature is not None:
        return "a temperature depends on positions"
    return exempt_far(case) if case.facts.shift_invariant else "it is not declared shift_invariant"


def _exempt_invariant(case: Case) -> str:
    if case.facts.shift_invariant:
        return "it is declared shift_invariant"
    # On fewer axes, generators may commute trivially.
    most = case.max_variant_axes
    return "" if case.axes == most else f"not tried: needs {most} axes"


@law("A shift-invariant encoding ignores shifts of all tokens along any axis.", _exempt_variant)
def shifts_change_nothing(case: Case, recorder: Recorder) -> None:
    # Large shifts leave the training size; fractions lie between the rows of tables.
    far = 4096.5 if case.axes == 1 else 100.5
    for causal in case.causal_modes:
        stack, x, pos = AttentionStack(case, causal=causal), case.states(), case.positions()
        expected = stack(x, pos)
        for number, axis in enumerate(torch.eye(case.axes, dtype=pos.dtype)):
            for shift in (2.5, far):
                quantity = f"the output with all tokens shifted by {shift} along axis {number}"
                recorder.require_close(stack(x, pos + shift * axis), expected, quantity)


@law(
    "Shifting all tokens changes an encoding that is not declared shift-invariant.",
    _exempt_invariant,
)
def shifts_are_seen(case: Case, recorder: Recorder) -> None:
    stack = AttentionStack(case, causal=case.facts.causal_only)
    x, pos = case.states(), case.positions()
    shifts = (1, 1024) if case.axes == 1 else (1,)
    outputs = [stack(x, pos + shift * axis) for axis in torch.eye(case.axes) for shift in shifts]
    expected = stack(x, pos)
    change = max(relative_error(out, expected) for out in outputs)
    recorder.require_above(change, NOTICEABLE, "shifts change the output by")


@law("Each sample may have its own positions.")
def each_sample_has_its_own_positions(case: Case, recorder: Recorder) -> None:
    pos = case.positions()
    both = torch.stack([pos, 2 * pos + 1])
    for causal in case.causal_modes:
        stack, x = AttentionStack(case, causal=causal), case.states()
        repeated = stack(x, pos.expand(BATCH, -1, -1))
        quantity = "the output with the same positions for each sample"
        recorder.require_close(repeated, stack(x, pos), quantity)

        together = stack(x, both)
        for sample in range(BATCH):
            alone = stack(x[sample, None], both[sample])[0]
            quantity = "the output of a sample with its own positions, against the sample alone"
            recorder.require_close(together[sample], alone, quantity)


def _exempt_causal(case: Case) -> str:
    return "it is meaningful only under a causal mask" if case.facts.causal_only else ""


@law(
    "Without a mask, permuting tokens together with their positions permutes the output.",
    _exempt_causal,
)
def permuted_tokens_permute_the_output(case: Case, recorder: Recorder) -> None:
    stack, order = AttentionStack(case, causal=False), torch.randperm(TOKENS)
    x, pos = case.states(), case.positions()
    quantity = "the output of tokens in another order"
    recorder.require_close(stack(x[:, order], pos[order]), stack(x, pos)[:, order], quantity)


@law("A document packed in a row with others has the same output as alone.")
def packed_documents_are_apart(case: Case, recorder: Recorder) -> None:
    pos, document = case.positions().clone(), packed_documents()[0]
    # Positions restart in each document.
    for number in (1, 2):
        pos[document == number] = case.positions()[: int((document == number).sum())]
    for causal in case.causal_modes:
        stack, x = AttentionStack(case, causal=causal), case.states()
        packed = stack(x, pos, document=document)
        for number in range(3):
            selected = document == number
            quantity = "the output of a document among others, against the document alone"
            recorder.require_close(
                packed[:, selected], stack(x[:, selected], pos[selected]), quantity
            )


@law("Padding before or after tokens does not change their output.")
def padding_changes_nothing(case: Case, recorder: Recorder) -> None:
    for causal in case.causal_modes:
        stack, x, pos = AttentionStack(case, causal=causal), case.states(), case.positions()
        for real in (slice(3, TOKENS), slice(0, TOKENS - 3), slice(2, TOKENS - 2)):
            document = torch.full((TOKENS,), -1)
            document[real] = 0
            padded = stack(x, pos, document=document)[:, real]
            quantity = "the output of tokens between padding, against the tokens alone"
            recorder.require_close(padded, stack(x[:, real], pos[real]), quantity)


@torch.no_grad()
def _copy_key_head(one_head: AttentionStack, repeated: AttentionStack) -> None:
    """Copy the parameters of a stack with one key head to each key head of another."""
    # A parameter per head differs in one axis, which is repeated; all others are copied.
    heads = repeated.first.dims.heads
    parameters = one_head.state_dict()
    for name, value in repeated.state_dict().items():
        parameter = parameters[name]
        axes = [axis for axis in range(value.dim()) if value.shape[axis] != parameter.shape[axis]]
        shapes = f"{tuple(parameter.shape)} with one key head, {tuple(value.shape)} with {heads}"
        require(len(axes) < 2, f"{name} is {shapes}, which differ in more than the number of heads")
        value.copy_(torch.cat([parameter] * heads, axes[0]) if axes else parameter)


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
        quantity = "the output with one key head for all query heads"
        recorder.require_close(shared(x, *where), repeated(x, *where), quantity)


@law("Coordinates of a token without a position are not read.")
def the_position_of_a_special_token_is_not_read(case: Case, recorder: Recorder) -> None:
    has_position, pos = position_mask(), case.positions()
    moved = torch.where(has_position[:, None], pos, pos + 7)
    for causal in case.causal_modes:
        stack, x = AttentionStack(case, causal=causal), case.states()
        expected = stack(x, pos, has_position)
        quantity = "the output when coordinates of tokens without a position change"
        recorder.require_close(stack(x, moved, has_position), expected, quantity)


def _replaces_default(link: Encoding) -> bool:
    """Return whether an encoding treats special tokens itself, as TUPE and PoPE do."""
    cls = type(link)
    overrides = (
        cls.modify is not Encoding.modify or cls.transform_query is not Encoding.transform_query
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
        q, k = torch.randn(2, BATCH, case.heads, TOKENS, case.head_dim, dtype=x.dtype).unbind()
        scores = functional.scores(chain, q, k, pos, x=x, has_position=has_position, causal=causal)
        plain = functional.scores(encoding([], case.dims), q, k, pos, causal=causal)
        tokens = chain.prepare(chain.embed(Tokens.at(x, pos, has_position)))
        query, key = chain.transform_query(q, tokens), chain.transform_key(k, tokens)
        unbiased = query @ key.mT * case.head_dim**-0.5

        # Pairs of special tokens have plain scores. Pairs with one have no bias, but rotations of
        # the other token count. States of special tokens do not change.
        quantity = "scores of pairs of tokens without a position, against plain products"
        pairs = scores[..., special, :][..., special]
        recorder.require_close(pairs, plain[..., special, :][..., special], quantity)
        some = ~both & scores.isfinite()
        quantity = "scores of pairs with a token without a position, against no bias"
        recorder.require_close(scores[some], unbiased[some], quantity)
        quantity = "states of tokens without a position, against their input"
        recorder.require_close(tokens.x[:, special], x[:, special], quantity)
