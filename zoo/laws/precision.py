"""Laws of rounding: half precision where it does no harm, and more where it would."""

from __future__ import annotations

import torch

from zoo.laws.law import Broken, Ledger, law, require
from zoo.laws.member import Member
from zoo.laws.stack import Stack

ROUNDED = 0.06  # what bfloat16 may do to a state of order one in two layers


@law("Far from the start, bfloat16 by autocast stays close to float32: angles and sums keep float32 at least.")
def bfloat16_stays_close(member: Member, seen: Ledger) -> None:
    stack, x = Stack(member, causal=member.facts.causal).float(), member.states().float()
    far = 5000 if member.axes == 1 else 100  # where an angle or a sum in bfloat16 would be off by more than one
    pos = (member.pos() + far).float()
    exact = stack(x, pos)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = stack(x, pos)
    rounded.float().square().sum().backward()
    stack.require_finite()
    seen.near(rounded.float(), exact, f"the output under bfloat16 at place {far}, against float32", ROUNDED)


@law("Weights that are bfloat16 themselves give an output in bfloat16, and finite gradients.")
def weights_may_be_bfloat16(member: Member, seen: Ledger) -> None:
    stack, x = Stack(member, causal=member.facts.causal), member.states()
    try:
        out = stack.bfloat16()(x.bfloat16(), member.pos().float())
    except RuntimeError as error:  # as of a norm that meets another dtype
        raise Broken(f"with weights in bfloat16: {error}") from error
    out.float().square().sum().backward()
    require(out.dtype == torch.bfloat16, f"the output is {out.dtype}, where weights and states are bfloat16")
    require(out.isfinite().all(), "the output is not finite where weights are bfloat16")
    stack.require_finite()
