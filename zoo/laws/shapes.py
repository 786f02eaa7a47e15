"""Laws of sizes: what keeps its shape, which axes are taken, and what is saved."""

from __future__ import annotations

import torch

from zoo import api
from zoo.errors import OptionError
from zoo.laws.case import BATCH, HEADS, TOKENS, Case
from zoo.laws.law import LawBroken, Recorder, law, require
from zoo.laws.test_model import Stack


@law(
    "Embedding, scores, weights and output have the shapes of what goes in, also where queries are the last few."
)
def shapes_are_kept(member: Case, seen: Recorder) -> None:
    encoding, x, pos = member.make().double(), member.states(), member.pos()
    _shaped("the embedding", api.embed(encoding, x, pos), *x.shape)
    for causal in member.masks:
        for n in (TOKENS, 5):
            q, k, v = (
                torch.randn(BATCH, HEADS, count, member.head).double()
                for count in (n, TOKENS, TOKENS)
            )
            scores = api.scores(encoding, q, k, pos, x=x, causal=causal)
            shares = api.weights(encoding, q, k, pos, x=x, causal=causal)
            _shaped("scores", scores, BATCH, HEADS, n, TOKENS)
            _shaped("weights", shares, BATCH, HEADS, n, TOKENS)
            _shaped("the output", api.attend(encoding, q, k, v, pos, x=x, causal=causal), *q.shape)


def _shaped(what: str, found: torch.Tensor, *shape: int) -> None:
    require(found.shape == shape, f"{what}: shaped {tuple(found.shape)}, not {shape}")


@law("Axes that are not declared are refused, with a message that says which are taken.")
def undeclared_axes_are_refused(member: Case, seen: Recorder) -> None:
    for axes in (1, 2, 3, 4):
        if not all(axes in link.axes for link in member.facts):
            try:
                member.build(member.sized(member.head, axes=axes))
            except OptionError as error:
                told = str(error)
                require(
                    f"axes, not {axes}" in told or f"axis, not {axes}" in told,
                    f"{axes} axes are refused by: {told}",
                )
            else:
                raise LawBroken(f"it is made for {axes} axes, which it does not declare")


@law("What a state dict is loaded into computes what was saved.")
def a_state_dict_carries_everything(member: Case, seen: Recorder) -> None:
    x, pos = member.states(), member.pos()
    saved, loaded = (Stack(member, causal=member.facts.causal_only) for _ in range(2))
    loaded.load_state_dict(saved.state_dict(), strict=True)
    seen.near(loaded(x, pos), saved(x, pos), "the output of what was saved and loaded")
