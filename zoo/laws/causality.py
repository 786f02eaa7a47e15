"""Laws of order: nothing is known of the future, and what was read is remembered as it was."""

from __future__ import annotations

import torch

from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.laws.case import TOKENS, Case, document, padded
from zoo.laws.law import Recorder, grows, law
from zoo.laws.test_model import Stack


@law("Under a causal mask, later tokens that are others change nothing.", grows)
def future_tokens_change_nothing(member: Case, seen: Recorder) -> None:
    stack, x = Stack(member, causal=True), member.states()
    whole = stack(x, member.pos())
    for now in (1, 6, TOKENS - 1):
        other = torch.cat([x[:, :now], 3 * torch.randn_like(x[:, now:])], dim=1)
        told = f"the output of the first {now} tokens where those after them are others"
        seen.near(stack(other, member.pos())[:, :now], whole[:, :now], told)


@law("Tokens that come one by one or in parts, with a cache, give what one pass gives.", grows)
def decoding_equals_one_pass(member: Case, seen: Recorder) -> None:
    stack, x, pos = Stack(member, causal=True), member.states(), member.pos()
    whole = stack(x, pos)
    with torch.no_grad():  # where a step appends in place
        one_by_one = stack.in_parts(KeyValueCache(), x, pos, *[1] * TOKENS)
        seen.near(one_by_one, whole, "the output of tokens that come one by one, against one pass")
    parts = stack.in_parts(KeyValueCache(), x, pos, 5, 1, 4, 2)
    seen.near(parts, whole, "the output of tokens that come in parts, against one pass")


@law(
    "Tokens of several documents, or of one padded on the left, come in parts, with a cache, as in one pass.",
    grows,
)
def documents_decode_as_in_one_pass(member: Case, seen: Recorder) -> None:
    stack, x, pos = Stack(member, causal=True), member.states(), member.pos()
    for told, documents in (("of several documents", document()), ("padded on the left", padded())):
        real = documents[0] >= 0
        parts = stack.in_parts(KeyValueCache(), x, pos, 5, 1, 4, 2, document=documents)
        whole = stack(x, pos, document=documents)
        seen.near(
            parts[:, real],
            whole[:, real],
            f"the output of tokens {told} that come in parts, against one pass",
        )


@law("A longer text begins as a shorter one does.", grows)
def a_longer_run_begins_the_same(member: Case, seen: Recorder) -> None:
    stack, x, pos = Stack(member, causal=True), member.states(), member.pos()
    whole = stack(x, pos)
    for n in (1, 5, TOKENS - 1):
        seen.near(
            stack(x[:, :n], pos[:n]),
            whole[:, :n],
            f"the output of {n} tokens alone, against that of {TOKENS}",
        )


@law(
    "Segments that follow each other, with a memory of all before, give what one pass gives.", grows
)
def full_memory_equals_one_pass(member: Case, seen: Recorder) -> None:
    stack, x, pos = Stack(member, causal=True), member.states(), member.pos()
    parts = stack.in_parts(SegmentMemory(TOKENS), x, pos, 5, 4, 3)
    seen.near(parts, stack(x, pos), "the output of three segments, against one pass")


@law(
    "A cache that forgets what no query will see gives what one pass under the same window gives.",
    grows,
)
def what_left_the_window_is_not_needed(member: Case, seen: Recorder) -> None:
    stack, x, pos = Stack(member, causal=True, window=4), member.states(), member.pos()
    whole = stack(x, pos)
    with torch.no_grad():
        one_by_one = stack.in_parts(KeyValueCache(), x, pos, 7, *[1] * (TOKENS - 7))
        seen.near(one_by_one, whole, "the output under a window of tokens that come one by one")
    parts = stack.in_parts(KeyValueCache(), x, pos, 2, 6, 4)
    seen.near(parts, whole, "the output under a window of tokens that come in parts")
