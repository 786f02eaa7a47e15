"""Laws of places: what shifts, orders and samples may change."""

from __future__ import annotations

import torch

from zoo.laws.case import BATCH, TOKENS, Case
from zoo.laws.law import SEEN, Recorder, error, law
from zoo.laws.test_model import Stack


def _relative(member: Case) -> str:
    return "" if member.facts.shift_invariant else "it is not declared relative"


def _absolute(member: Case) -> str:
    if member.facts.shift_invariant:
        return "it is declared relative"
    most = member.most_axes  # on fewer, what does not commute has nothing to commute with
    return "" if member.axes == most else f"not tried: needs {most} axes"


@law(
    "What is declared relative is the same wherever all tokens are shifted to, along each axis.",
    _relative,
)
def shifts_change_nothing(member: Case, seen: Recorder) -> None:
    for causal in member.masks:
        stack, x, pos = Stack(member, causal=causal), member.states(), member.pos()
        for number, axis in enumerate(torch.eye(member.axes, dtype=pos.dtype)):
            for shift in (
                2.5,
                4096.5 if member.axes == 1 else 100.5,
            ):  # also past where a table would end
                told = f"the output where all tokens are shifted by {shift} along axis {number}"
                seen.near(stack(x, pos + shift * axis), stack(x, pos), told)


@law(
    "What is not declared relative changes where all tokens are shifted: else it could be declared so.",
    _absolute,
)
def shifts_are_seen(member: Case, seen: Recorder) -> None:
    stack, x, pos = Stack(member, causal=member.facts.causal_only), member.states(), member.pos()
    shifts = (1, 1024) if member.axes == 1 else (1,)
    shifted = [stack(x, pos + shift * axis) for axis in torch.eye(member.axes) for shift in shifts]
    change = max(error(out, stack(x, pos)) for out in shifted)
    seen.above(change, SEEN, "shifts change the output by")


@law("Places given for each sample are those of the sample.")
def each_sample_has_its_own_positions(member: Case, seen: Recorder) -> None:
    places = torch.stack([member.pos(), 2 * member.pos() + 1])
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states()
        each = stack(x, member.pos().expand(BATCH, -1, -1))
        seen.near(
            each, stack(x, member.pos()), "the output where each sample is given the same places"
        )
        together = stack(x, places)
        for sample in range(BATCH):
            alone = stack(x[sample, None], places[sample])[0]
            seen.near(
                together[sample],
                alone,
                "the output of a sample with places of its own, against it alone",
            )


def _ordered(member: Case) -> str:
    return "it is meaningful only under a causal mask" if member.facts.causal_only else ""


@law(
    "Without a mask, tokens that change slots together with their places give the output in that order.",
    _ordered,
)
def permuted_tokens_permute_the_output(member: Case, seen: Recorder) -> None:
    stack, x, pos, order = (
        Stack(member, causal=False),
        member.states(),
        member.pos(),
        torch.randperm(TOKENS),
    )
    seen.near(
        stack(x[:, order], pos[order]),
        stack(x, pos)[:, order],
        "the output of tokens in another order",
    )
