"""Laws of numbers: half precision, and attention weights between 0 and 1."""

from __future__ import annotations

import torch

from zoo.attention.backends.dispatch import attend
from zoo.attention.backends.reference import attention_mask, weights
from zoo.laws.attention_stack import AttentionStack
from zoo.laws.case import Case, packed_documents, position_mask
from zoo.laws.law import ROUNDING, LawBroken, Recorder, law, require

BFLOAT16_ERROR = 0.06  # what bfloat16 may do to a state of order one in two layers


@law("Far from the start, autocast to bfloat16 stays close: angles and sums keep float32.")
def bfloat16_stays_close(case: Case, recorder: Recorder) -> None:
    stack = AttentionStack(case, causal=case.facts.causal_only).float()
    x = case.states().float()
    far = 5000 if case.axes == 1 else 100  # an angle or a sum in bfloat16 would be off by over 1
    pos = (case.positions() + far).float()
    exact = stack(x, pos)
    with torch.autocast("cpu", torch.bfloat16):
        out = stack(x, pos).float()
    out.square().sum().backward()
    stack.require_finite()
    what = f"the output under bfloat16 at position {far}, against float32"
    recorder.require_close(out, exact, what, BFLOAT16_ERROR)


@law("Parameters in bfloat16 give an output in bfloat16, and finite gradients.")
def weights_may_be_bfloat16(case: Case, recorder: Recorder) -> None:
    stack, x = AttentionStack(case, causal=case.facts.causal_only), case.states()
    try:
        out = stack.bfloat16()(x.bfloat16(), case.positions().float())
    except RuntimeError as error:  # as of a norm that meets another dtype
        raise LawBroken(f"with parameters in bfloat16: {error}") from error
    out.float().square().sum().backward()
    dtype = f"the output is {out.dtype}, where parameters and states are bfloat16"
    require(out.dtype == torch.bfloat16, dtype)
    require(out.isfinite().all(), "the output is not finite where parameters are bfloat16")
    stack.require_finite()


@law("Attention weights are not negative, zero for invisible keys, and add up to at most 1.")
def weights_are_shares_of_what_is_visible(case: Case, recorder: Recorder) -> None:
    for causal in case.causal_modes:
        for where in ((), (position_mask(), packed_documents())):
            stack = AttentionStack(case, causal=causal, layers=1)
            call = stack.call(case.states(), case.positions(), *where)
            shares = weights(call).detach()
            least = float(shares.min())
            require(least >= 0, f"an attention weight is {least:.1e}, less than zero")
            hidden = shares.masked_select(~attention_mask(call))
            require((hidden == 0).all(), "a key that its query may not see has a weight")
            most = float(shares.sum(-1).max())
            require(most <= 1 + ROUNDING, f"the weights of a query add up to {most:.9g}, over 1")


@law("A query that sees no key has output zero and finite gradients.")
def a_masked_row_gives_nothing(case: Case, recorder: Recorder) -> None:
    padding = packed_documents()[0] < 0
    for causal in case.causal_modes:
        for backend in ("reference", "auto"):
            stack = AttentionStack(case, causal=causal, layers=1)
            call = stack.call(case.states(), case.positions(), None, packed_documents())
            out, _ = attend(call, backend)
            rest = torch.zeros_like(out)
            if call.extra_output is not None:
                rest = call.extra_output(weights(call), call.full_span)
            what = "the output of a query that sees no key"
            recorder.require_close(out[:, :, padding], rest[:, :, padding], what)
            out.square().sum().backward()
            stack.require_finite()
