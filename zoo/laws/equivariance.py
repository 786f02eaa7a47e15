"""What a result depends on: earlier tokens alone, and offsets alone."""

from __future__ import annotations

import torch

from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.laws.attention_stack import AttentionStack
from zoo.laws.case import BATCH, TOKENS, Case, left_padding, packed_documents
from zoo.laws.law import NOTICEABLE, Recorder, exempt_full_sequence, law, relative_error


@law("Under a causal mask, changing later tokens changes nothing.", exempt_full_sequence)
def future_tokens_change_nothing(case: Case, recorder: Recorder) -> None:
    stack, x, pos = AttentionStack(case, causal=True), case.states(), case.positions()
    whole = stack(x, pos)
    for count in (1, 6, TOKENS - 1):
        other = torch.cat([x[:, :count], 3 * torch.randn_like(x[:, count:])], dim=1)
        what = f"the output of the first {count} tokens when those after them change"
        recorder.require_close(stack(other, pos)[:, :count], whole[:, :count], what)


@law(
    "Decoding one by one or in parts, with a cache, gives what one pass gives.",
    exempt_full_sequence,
)
def decoding_equals_one_pass(case: Case, recorder: Recorder) -> None:
    stack, x, pos = AttentionStack(case, causal=True), case.states(), case.positions()
    whole = stack(x, pos)
    with torch.no_grad():  # the cache appends in place
        single = stack.in_parts(KeyValueCache(), x, pos, *[1] * TOKENS)
        what = "the output of tokens decoded one by one, against one pass"
        recorder.require_close(single, whole, what)
    parts = stack.in_parts(KeyValueCache(), x, pos, 5, 1, 4, 2)
    recorder.require_close(parts, whole, "the output of tokens decoded in parts, against one pass")


@law(
    "Packed documents, or one padded on the left, decode in parts as in one pass.",
    exempt_full_sequence,
)
def documents_decode_as_in_one_pass(case: Case, recorder: Recorder) -> None:
    stack, x, pos = AttentionStack(case, causal=True), case.states(), case.positions()
    batches = {"of packed documents": packed_documents(), "padded on the left": left_padding()}
    for which, document in batches.items():
        real = document[0] >= 0
        parts = stack.in_parts(KeyValueCache(), x, pos, 5, 1, 4, 2, document=document)
        whole = stack(x, pos, document=document)
        what = f"the output of tokens {which}, decoded in parts, against one pass"
        recorder.require_close(parts[:, real], whole[:, real], what)


@law("Appending tokens does not change the output of those before.", exempt_full_sequence)
def a_longer_run_begins_the_same(case: Case, recorder: Recorder) -> None:
    stack, x, pos = AttentionStack(case, causal=True), case.states(), case.positions()
    whole = stack(x, pos)
    for count in (1, 5, TOKENS - 1):
        what = f"the output of {count} tokens alone, against that of {TOKENS}"
        recorder.require_close(stack(x[:, :count], pos[:count]), whole[:, :count], what)


@law(
    "Segments, with a memory of all segments before, give what one pass gives.",
    exempt_full_sequence,
)
def full_memory_equals_one_pass(case: Case, recorder: Recorder) -> None:
    stack, x, pos = AttentionStack(case, causal=True), case.states(), case.positions()
    parts = stack.in_parts(SegmentMemory(TOKENS), x, pos, 5, 4, 3)
    recorder.require_close(parts, stack(x, pos), "the output of three segments, against one pass")


@law(
    "A cache that drops keys outside the window gives what one windowed pass gives.",
    exempt_full_sequence,
)
def what_left_the_window_is_not_needed(case: Case, recorder: Recorder) -> None:
    stack = AttentionStack(case, causal=True, window=4)
    x, pos = case.states(), case.positions()
    whole = stack(x, pos)
    with torch.no_grad():
        single = stack.in_parts(KeyValueCache(), x, pos, 7, *[1] * (TOKENS - 7))
        what = "the output under a window of tokens decoded one by one"
        recorder.require_close(single, whole, what)
    parts = stack.in_parts(KeyValueCache(), x, pos, 2, 6, 4)
    recorder.require_close(parts, whole, "the output under a window of tokens decoded in parts")


def _exempt_variant(case: Case) -> str:
    return "" if case.facts.shift_invariant else "it is not declared shift_invariant"


def _exempt_invariant(case: Case) -> str:
    if case.facts.shift_invariant:
        return "it is declared shift_invariant"
    # on fewer axes, generators that do not commute have nothing to commute with
    return "" if case.axes == case.max_axes else f"not tried: needs {case.max_axes} axes"


@law("A shift-invariant encoding ignores shifts of all tokens along any axis.", _exempt_variant)
def shifts_change_nothing(case: Case, recorder: Recorder) -> None:
    far = 4096.5 if case.axes == 1 else 100.5  # also past the end of a table
    for causal in case.causal_modes:
        stack, x, pos = AttentionStack(case, causal=causal), case.states(), case.positions()
        for number, axis in enumerate(torch.eye(case.axes, dtype=pos.dtype)):
            for shift in (2.5, far):
                what = f"the output where all tokens are shifted by {shift} along axis {number}"
                recorder.require_close(stack(x, pos + shift * axis), stack(x, pos), what)


@law(
    "Shifting all tokens changes an encoding that is not declared shift-invariant.",
    _exempt_invariant,
)
def shifts_are_seen(case: Case, recorder: Recorder) -> None:
    stack = AttentionStack(case, causal=case.facts.causal_only)
    x, pos = case.states(), case.positions()
    shifts = (1, 1024) if case.axes == 1 else (1,)
    outputs = [stack(x, pos + shift * axis) for axis in torch.eye(case.axes) for shift in shifts]
    change = max(relative_error(out, stack(x, pos)) for out in outputs)
    recorder.require_above(change, NOTICEABLE, "shifts change the output by")


@law("Each sample may have positions of its own.")
def each_sample_has_its_own_positions(case: Case, recorder: Recorder) -> None:
    pos = case.positions()
    both = torch.stack([pos, 2 * pos + 1])
    for causal in case.causal_modes:
        stack, x = AttentionStack(case, causal=causal), case.states()
        each = stack(x, pos.expand(BATCH, -1, -1))
        what = "the output where each sample is given the same positions"
        recorder.require_close(each, stack(x, pos), what)

        together = stack(x, both)
        for sample in range(BATCH):
            alone = stack(x[sample, None], both[sample])[0]
            what = "the output of a sample with positions of its own, against the sample alone"
            recorder.require_close(together[sample], alone, what)


def _exempt_causal(case: Case) -> str:
    return "it is meaningful only under a causal mask" if case.facts.causal_only else ""


@law(
    "Without a mask, permuting tokens together with their positions permutes the output.",
    _exempt_causal,
)
def permuted_tokens_permute_the_output(case: Case, recorder: Recorder) -> None:
    stack, order = AttentionStack(case, causal=False), torch.randperm(TOKENS)
    x, pos = case.states(), case.positions()
    what = "the output of tokens in another order"
    recorder.require_close(stack(x[:, order], pos[order]), stack(x, pos)[:, order], what)
