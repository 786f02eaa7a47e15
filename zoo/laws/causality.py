"""Laws about causal masks: future tokens have no effect, and decoding equals one pass.

A sequence may be read in one pass, token by token with a cache, or in segments with a memory.
"""

from __future__ import annotations

import torch

from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.laws.attention_stack import AttentionStack
from zoo.laws.case import TOKENS, Case, left_padding, packed_documents
from zoo.laws.law import Recorder, exempt_full_sequence, law


@law("Under a causal mask, later tokens have no effect on earlier ones.", exempt_full_sequence)
def future_tokens_change_nothing(case: Case, recorder: Recorder) -> None:
    stack, x, pos = AttentionStack(case, causal=True), case.states(), case.positions()
    whole = stack(x, pos)
    for count in (1, 6, TOKENS - 1):
        changed = torch.cat([x[:, :count], 3 * torch.randn_like(x[:, count:])], dim=1)
        quantity = f"the output of the first {count} tokens when later ones change"
        recorder.require_close(stack(changed, pos)[:, :count], whole[:, :count], quantity)


@law("Decoding token by token or in parts with a cache equals one pass.", exempt_full_sequence)
def decoding_equals_one_pass(case: Case, recorder: Recorder) -> None:
    stack, x, pos = AttentionStack(case, causal=True), case.states(), case.positions()
    whole = stack(x, pos)
    # Without gradients the cache appends in place, with gradients it makes new tensors.
    with torch.no_grad():
        single = stack.in_parts(KeyValueCache(), x, pos, *[1] * TOKENS)
        quantity = "the output of tokens decoded one by one, against one pass"
        recorder.require_close(single, whole, quantity)
    parts = stack.in_parts(KeyValueCache(), x, pos, 5, 1, 4, 2)
    recorder.require_close(parts, whole, "the output of tokens decoded in parts, against one pass")


@law("Decoding packed or left-padded documents in parts equals one pass.", exempt_full_sequence)
def documents_decode_as_in_one_pass(case: Case, recorder: Recorder) -> None:
    stack, x, pos = AttentionStack(case, causal=True), case.states(), case.positions()
    batches = {"of packed documents": packed_documents(), "padded on the left": left_padding()}
    for which, document in batches.items():
        real = document[0] >= 0
        parts = stack.in_parts(KeyValueCache(), x, pos, 5, 1, 4, 2, document=document)
        whole = stack(x, pos, document=document)
        quantity = f"the output of tokens {which}, decoded in parts, against one pass"
        recorder.require_close(parts[:, real], whole[:, real], quantity)


@law("Appending tokens does not change the output of earlier ones.", exempt_full_sequence)
def a_longer_run_begins_the_same(case: Case, recorder: Recorder) -> None:
    stack, x, pos = AttentionStack(case, causal=True), case.states(), case.positions()
    whole = stack(x, pos)
    for count in (1, 5, TOKENS - 1):
        quantity = f"the output of {count} tokens alone, against that of {TOKENS}"
        recorder.require_close(stack(x[:, :count], pos[:count]), whole[:, :count], quantity)


@law("Segments with a memory of all earlier segments equal one pass.", exempt_full_sequence)
def full_memory_equals_one_pass(case: Case, recorder: Recorder) -> None:
    stack, x, pos = AttentionStack(case, causal=True), case.states(), case.positions()
    parts = stack.in_parts(SegmentMemory(TOKENS), x, pos, 5, 4, 3)
    recorder.require_close(parts, stack(x, pos), "the output of three segments, against one pass")


@law(
    "Decoding with a cache that drops keys outside the window equals one windowed pass.",
    exempt_full_sequence,
)
def what_left_the_window_is_not_needed(case: Case, recorder: Recorder) -> None:
    stack = AttentionStack(case, causal=True, window=4)
    x, pos = case.states(), case.positions()
    whole = stack(x, pos)
    with torch.no_grad():
        single = stack.in_parts(KeyValueCache(), x, pos, 7, *[1] * (TOKENS - 7))
        quantity = "the output under a window of tokens decoded one by one"
        recorder.require_close(single, whole, quantity)
    parts = stack.in_parts(KeyValueCache(), x, pos, 2, 6, 4)
    recorder.require_close(parts, whole, "the output under a window of tokens decoded in parts")
