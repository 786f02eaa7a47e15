"""Laws of tokens without a place, such as class and register tokens."""

from __future__ import annotations

import torch

from zoo import functions
from zoo.attention.encoding import Encoding
from zoo.attention.tokens import Tokens
from zoo.laws.law import Ledger, law
from zoo.laws.member import BATCH, HEADS, TOKENS, Member, unplaced
from zoo.laws.stack import Stack


@law("Where a token without a place would be, if it had one, is not read.")
def the_place_of_an_unplaced_token_is_not_read(member: Member, seen: Ledger) -> None:
    placed = unplaced()
    moved = torch.where(placed[:, None], member.pos(), member.pos() + 7)
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states()
        told = "the output where tokens without a place are somewhere else"
        seen.near(stack(x, moved, placed), stack(x, member.pos(), placed), told)


def _replaced(link: Encoding) -> bool:
    """Whether a link does something of its own with tokens without a place (TUPE's reset, PoPE's lengths)."""
    own = type(link)
    return link.unplaced and (own.terms is not Encoding.terms or own.turn_query is not Encoding.turn_query)


def _own(member: Member) -> str:
    return "it handles tokens without a place itself" if any(map(_replaced, member.facts)) else ""


@law("Tokens without a place are neither turned nor biased, and nothing is added to them.", _own)
def unplaced_tokens_are_left_alone(member: Member, seen: Ledger) -> None:
    placed, both = unplaced(), unplaced()[:, None] & unplaced()
    for causal in member.masks:
        chain, x = Stack(member, causal=causal, layers=1).first, member.states()
        q, k = torch.randn(2, BATCH, HEADS, TOKENS, member.head, dtype=x.dtype).unbind()
        scores = functions.scores(chain, q, k, member.pos(), x=x, placed=placed, causal=causal)
        plain = functions.scores(functions.encoding([], member.dims), q, k, member.pos(), causal=causal)
        tokens = chain.annotate(chain.embed(Tokens.at(x, member.pos(), placed)))
        unbiased = chain.turn_query(q, tokens) @ chain.turn_key(k, tokens).mT * member.head**-0.5
        told = "scores of pairs of tokens without a place, against plain products"
        seen.near(scores[..., ~placed, :][..., ~placed], plain[..., ~placed, :][..., ~placed], told)
        some = ~both & scores.isfinite()
        seen.near(scores[some], unbiased[some], "scores of pairs with a token without a place, against no bias")
        seen.near(tokens.x[:, ~placed], x[:, ~placed], "states of tokens without a place, against those given")
