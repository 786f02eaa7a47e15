"""Laws of rows: several documents in one, padding, and heads that are shared."""

from __future__ import annotations

import torch

from zoo.laws.law import Ledger, law, require
from zoo.laws.member import HEADS, TOKENS, Member, document, unplaced
from zoo.laws.stack import Stack


@law("Documents packed in one row give what each gives by itself.")
def packed_documents_are_apart(member: Member, seen: Ledger) -> None:
    pos, documents = member.pos().clone(), document()[0]
    for number in (1, 2):  # each begins at the first place again
        pos[documents == number] = member.pos()[: int((documents == number).sum())]
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states()
        packed = stack(x, pos, document=documents)
        for number in range(3):
            own = documents == number
            seen.near(
                packed[:, own], stack(x[:, own], pos[own]), "the output of a document among others, against it alone"
            )


@law("Padding before or after a text changes nothing.")
def padding_changes_nothing(member: Member, seen: Ledger) -> None:
    for causal in member.masks:
        stack, x, pos = Stack(member, causal=causal), member.states(), member.pos()
        for real in (slice(3, TOKENS), slice(0, TOKENS - 3), slice(2, TOKENS - 2)):
            documents = torch.full((TOKENS,), -1)
            documents[real] = 0
            padded = stack(x, pos, document=documents)[:, real]
            seen.near(padded, stack(x[:, real], pos[real]), "the output of a text between padding, against it alone")


@torch.no_grad()
def _repeat(grouped: Stack, repeated: Stack) -> None:
    """Give a stack with a key head per query head what one with a single key head has."""
    found = grouped.state_dict()
    for name, value in repeated.state_dict().items():
        one = found[name]
        axes = [axis for axis in range(value.dim()) if value.shape[axis] != one.shape[axis]]
        shapes = f"{tuple(one.shape)} with one key head, {tuple(value.shape)} with two"
        require(len(axes) < 2, f"{name} is {shapes}, which differ in more than the number of heads")
        value.copy_(torch.cat([one] * HEADS, axes[0]) if axes else one)


def _apart(member: Member) -> str:
    return "" if member.shares else "it needs a key head for each query head"


@law("Key heads that query heads share give what equal key heads of their own give.", _apart)
def shared_key_heads_equal_repeated_ones(member: Member, seen: Ledger) -> None:
    for causal in member.masks:
        grouped, repeated = Stack(member.grouped, causal=causal), Stack(member, causal=causal)
        _repeat(grouped, repeated)
        x, where = member.states(), (member.pos(), unplaced(), document())
        seen.near(grouped(x, *where), repeated(x, *where), "the output with one key head for all")
