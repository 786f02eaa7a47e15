"""Laws of weights: shares of what is visible, and of nothing else."""

from __future__ import annotations

import torch

from zoo.attention.backends.dispatch import attend
from zoo.attention.backends.reference import attention_mask, weights
from zoo.laws.case import Case, document, unplaced
from zoo.laws.law import EXACT, LawBroken, Recorder, law, require
from zoo.laws.test_model import Stack

ROUNDED = 0.06  # what bfloat16 may do to a state of order one in two layers


@law(
    "Far from the start, bfloat16 by autocast stays close to float32: angles and sums keep float32 at least."
)
def bfloat16_stays_close(member: Case, seen: Recorder) -> None:
    stack, x = Stack(member, causal=member.facts.causal_only).float(), member.states().float()
    far = (
        5000 if member.axes == 1 else 100
    )  # where an angle or a sum in bfloat16 would be off by more than one
    pos = (member.pos() + far).float()
    exact = stack(x, pos)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = stack(x, pos)
    rounded.float().square().sum().backward()
    stack.require_finite()
    seen.near(
        rounded.float(),
        exact,
        f"the output under bfloat16 at place {far}, against float32",
        ROUNDED,
    )


@law("Weights that are bfloat16 themselves give an output in bfloat16, and finite gradients.")
def weights_may_be_bfloat16(member: Case, seen: Recorder) -> None:
    stack, x = Stack(member, causal=member.facts.causal_only), member.states()
    try:
        out = stack.bfloat16()(x.bfloat16(), member.pos().float())
    except RuntimeError as error:  # as of a norm that meets another dtype
        raise LawBroken(f"with weights in bfloat16: {error}") from error
    out.float().square().sum().backward()
    require(
        out.dtype == torch.bfloat16,
        f"the output is {out.dtype}, where weights and states are bfloat16",
    )
    require(out.isfinite().all(), "the output is not finite where weights are bfloat16")
    stack.require_finite()


@law("Weights are never negative, zero for what is not visible, and add up to one at most.")
def weights_are_shares_of_what_is_visible(member: Case, seen: Recorder) -> None:
    for causal in member.masks:
        for where in ((), (unplaced(), document())):
            call = Stack(member, causal=causal, layers=1).call(
                member.states(), member.pos(), *where
            )
            shares = weights(call).detach()
            require(
                (shares >= 0).all(), f"a weight is {float(shares.min()):.1e}, less than nothing"
            )
            hidden = shares.masked_select(~attention_mask(call))
            require((hidden == 0).all(), "a key that its query may not see has a weight")
            most = float(shares.sum(-1).max())
            require(most <= 1 + EXACT, f"the weights of a query add up to {most:.9g}, more than 1")


@law("A query that sees nothing reads nothing, and its gradients are finite.")
def a_masked_row_gives_nothing(member: Case, seen: Recorder) -> None:
    padding = document()[0] < 0
    for causal in member.masks:
        for backend in ("reference", "auto"):
            stack = Stack(member, causal=causal, layers=1)
            call = stack.call(member.states(), member.pos(), None, document())
            out, _ = attend(call, backend)
            rest = (
                torch.zeros_like(out)
                if call.extra_output is None
                else call.extra_output(weights(call), call.full_span)
            )
            seen.near(
                out[:, :, padding], rest[:, :, padding], "the output of a query that sees nothing"
            )
            out.square().sum().backward()
            stack.require_finite()
