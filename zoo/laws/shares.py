"""Laws of weights: shares of what is visible, and of nothing else."""

from __future__ import annotations

import torch

from zoo.attention.attend import attend
from zoo.attention.dense import mask, weights
from zoo.laws.law import EXACT, Ledger, law, require
from zoo.laws.member import Member, document, unplaced
from zoo.laws.stack import Stack


@law("Weights are never negative, zero for what is not visible, and add up to one at most.")
def weights_are_shares_of_what_is_visible(member: Member, seen: Ledger) -> None:
    for causal in member.masks:
        for where in ((), (unplaced(), document())):
            terms = Stack(member, causal=causal, layers=1).terms(member.states(), member.pos(), *where)
            shares = weights(terms).detach()
            require((shares >= 0).all(), f"a weight is {float(shares.min()):.1e}, less than nothing")
            hidden = shares.masked_select(~mask(terms))
            require((hidden == 0).all(), "a key that its query may not see has a weight")
            most = float(shares.sum(-1).max())
            require(most <= 1 + EXACT, f"the weights of a query add up to {most:.9g}, more than 1")


@law("A query that sees nothing reads nothing, and its gradients are finite.")
def a_masked_row_gives_nothing(member: Member, seen: Ledger) -> None:
    padding = document()[0] < 0
    for causal in member.masks:
        for backend in ("dense", "auto"):
            stack = Stack(member, causal=causal, layers=1)
            terms = stack.terms(member.states(), member.pos(), None, document())
            out, _ = attend(terms, backend)
            rest = torch.zeros_like(out) if terms.readout is None else terms.readout(weights(terms), terms.whole)
            seen.near(out[:, :, padding], rest[:, :, padding], "the output of a query that sees nothing")
            out.square().sum().backward()
            stack.require_finite()
