"""Laws of rows: several documents in one, padding, and heads that are shared."""

from __future__ import annotations

import torch

from zoo import api
from zoo.attention.encoding import Encoding
from zoo.attention.tokens import Tokens
from zoo.laws.case import BATCH, HEADS, TOKENS, Case, document, unplaced
from zoo.laws.law import Recorder, law, require
from zoo.laws.test_model import Stack


@law("Documents packed in one row give what each gives by itself.")
def packed_documents_are_apart(member: Case, seen: Recorder) -> None:
    pos, documents = member.pos().clone(), document()[0]
    for number in (1, 2):  # each begins at the first place again
        pos[documents == number] = member.pos()[: int((documents == number).sum())]
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states()
        packed = stack(x, pos, document=documents)
        for number in range(3):
            own = documents == number
            seen.near(
                packed[:, own],
                stack(x[:, own], pos[own]),
                "the output of a document among others, against it alone",
            )


@law("Padding before or after a text changes nothing.")
def padding_changes_nothing(member: Case, seen: Recorder) -> None:
    for causal in member.masks:
        stack, x, pos = Stack(member, causal=causal), member.states(), member.pos()
        for real in (slice(3, TOKENS), slice(0, TOKENS - 3), slice(2, TOKENS - 2)):
            documents = torch.full((TOKENS,), -1)
            documents[real] = 0
            padded = stack(x, pos, document=documents)[:, real]
            seen.near(
                padded,
                stack(x[:, real], pos[real]),
                "the output of a text between padding, against it alone",
            )


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


def _apart(member: Case) -> str:
    return "" if member.shares else "it needs a key head for each query head"


@law("Key heads that query heads share give what equal key heads of their own give.", _apart)
def shared_key_heads_equal_repeated_ones(member: Case, seen: Recorder) -> None:
    for causal in member.masks:
        grouped, repeated = Stack(member.grouped, causal=causal), Stack(member, causal=causal)
        _repeat(grouped, repeated)
        x, where = member.states(), (member.pos(), unplaced(), document())
        seen.near(grouped(x, *where), repeated(x, *where), "the output with one key head for all")


@law("Where a token without a place would be, if it had one, is not read.")
def the_place_of_an_unplaced_token_is_not_read(member: Case, seen: Recorder) -> None:
    placed = unplaced()
    moved = torch.where(placed[:, None], member.pos(), member.pos() + 7)
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states()
        told = "the output where tokens without a place are somewhere else"
        seen.near(stack(x, moved, placed), stack(x, member.pos(), placed), told)


def _replaced(link: Encoding) -> bool:
    """Whether a link does something of its own with tokens without a place (TUPE's reset, PoPE's lengths)."""
    own = type(link)
    return link.handles_special_tokens and (
        own.modify is not Encoding.modify or own.transform_query is not Encoding.transform_query
    )


def _own(member: Case) -> str:
    return "it handles tokens without a place itself" if any(map(_replaced, member.facts)) else ""


@law("Tokens without a place are neither turned nor biased, and nothing is added to them.", _own)
def unplaced_tokens_are_left_alone(member: Case, seen: Recorder) -> None:
    placed, both = unplaced(), unplaced()[:, None] & unplaced()
    for causal in member.masks:
        chain, x = Stack(member, causal=causal, layers=1).first, member.states()
        q, k = torch.randn(2, BATCH, HEADS, TOKENS, member.head, dtype=x.dtype).unbind()
        scores = api.scores(chain, q, k, member.pos(), x=x, has_position=placed, causal=causal)
        plain = api.scores(api.encoding([], member.dims), q, k, member.pos(), causal=causal)
        tokens = chain.prepare(chain.embed(Tokens.at(x, member.pos(), placed)))
        unbiased = (
            chain.transform_query(q, tokens) @ chain.transform_key(k, tokens).mT * member.head**-0.5
        )
        told = "scores of pairs of tokens without a place, against plain products"
        seen.near(scores[..., ~placed, :][..., ~placed], plain[..., ~placed, :][..., ~placed], told)
        some = ~both & scores.isfinite()
        seen.near(
            scores[some],
            unbiased[some],
            "scores of pairs with a token without a place, against no bias",
        )
        seen.near(
            tokens.x[:, ~placed],
            x[:, ~placed],
            "states of tokens without a place, against those given",
        )
