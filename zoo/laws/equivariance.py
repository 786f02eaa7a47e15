"""Laws of positions: the effect of shifts, permutations and positions per sample."""

from __future__ import annotations

import torch

from zoo.laws.attention_stack import AttentionStack
from zoo.laws.case import BATCH, TOKENS, Case
from zoo.laws.law import NOTICEABLE, Recorder, law, relative_error


def _exempt_variant(case: Case) -> str:
    return "" if case.facts.shift_invariant else "it is not declared shift_invariant"


def _exempt_invariant(case: Case) -> str:
    if case.facts.shift_invariant:
        return "it is declared shift_invariant"
    # on fewer axes, generators that do not commute have nothing to commute with
    return "" if case.axes == case.max_axes else f"not tried: needs {case.max_axes} axes"


@law("A shift-invariant encoding ignores shifts of all tokens along any axis.", _exempt_variant)
def shifts_change_nothing(case: Case, recorder: Recorder) -> None:
    far = 4096.5 if case.axes == 1 else 100.5  # also past the end of a table
    for causal in case.causal_modes:
        stack, x, pos = AttentionStack(case, causal=causal), case.states(), case.positions()
        for number, axis in enumerate(torch.eye(case.axes, dtype=pos.dtype)):
            for shift in (2.5, far):
                what = f"the output where all tokens are shifted by {shift} along axis {number}"
                recorder.require_close(stack(x, pos + shift * axis), stack(x, pos), what)


@law(
    "Shifting all tokens changes an encoding that is not declared shift-invariant.",
    _exempt_invariant,
)
def shifts_are_seen(case: Case, recorder: Recorder) -> None:
    stack = AttentionStack(case, causal=case.facts.causal_only)
    x, pos = case.states(), case.positions()
    shifts = (1, 1024) if case.axes == 1 else (1,)
    outputs = [stack(x, pos + shift * axis) for axis in torch.eye(case.axes) for shift in shifts]
    change = max(relative_error(out, stack(x, pos)) for out in outputs)
    recorder.require_above(change, NOTICEABLE, "shifts change the output by")


@law("Each sample may have positions of its own.")
def each_sample_has_its_own_positions(case: Case, recorder: Recorder) -> None:
    pos = case.positions()
    both = torch.stack([pos, 2 * pos + 1])
    for causal in case.causal_modes:
        stack, x = AttentionStack(case, causal=causal), case.states()
        each = stack(x, pos.expand(BATCH, -1, -1))
        what = "the output where each sample is given the same positions"
        recorder.require_close(each, stack(x, pos), what)

        together = stack(x, both)
        for sample in range(BATCH):
            alone = stack(x[sample, None], both[sample])[0]
            what = "the output of a sample with positions of its own, against the sample alone"
            recorder.require_close(together[sample], alone, what)


def _exempt_causal(case: Case) -> str:
    return "it is meaningful only under a causal mask" if case.facts.causal_only else ""


@law(
    "Without a mask, permuting tokens together with their positions permutes the output.",
    _exempt_causal,
)
def permuted_tokens_permute_the_output(case: Case, recorder: Recorder) -> None:
    stack, order = AttentionStack(case, causal=False), torch.randperm(TOKENS)
    x, pos = case.states(), case.positions()
    what = "the output of tokens in another order"
    recorder.require_close(stack(x[:, order], pos[order]), stack(x, pos)[:, order], what)
