"""Laws of shapes: shapes of results, accepted axes, and state dicts."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo import api
from zoo.errors import OptionError
from zoo.laws.attention_stack import AttentionStack
from zoo.laws.case import BATCH, HEADS, TOKENS, Case
from zoo.laws.law import LawBroken, Recorder, law, require


@law("Embedding, scores, weights and output keep their shapes, also for only the last queries.")
def shapes_are_kept(case: Case, recorder: Recorder) -> None:
    encoding, x, pos = case.build().double(), case.states(), case.positions()
    _require_shape("the embedding", api.embed(encoding, x, pos), *x.shape)
    for causal in case.causal_modes:
        for n in (TOKENS, 5):
            q, k, v = (
                torch.randn(BATCH, HEADS, count, case.head_dim).double()
                for count in (n, TOKENS, TOKENS)
            )
            scores = api.scores(encoding, q, k, pos, x=x, causal=causal)
            shares = api.weights(encoding, q, k, pos, x=x, causal=causal)
            out = api.attend(encoding, q, k, v, pos, x=x, causal=causal)
            _require_shape("scores", scores, BATCH, HEADS, n, TOKENS)
            _require_shape("weights", shares, BATCH, HEADS, n, TOKENS)
            _require_shape("the output", out, *q.shape)


def _require_shape(what: str, actual: Tensor, *shape: int) -> None:
    require(actual.shape == shape, f"{what}: shape {tuple(actual.shape)}, not {shape}")


@law("Axes that are not declared are refused, with a message that says which are accepted.")
def undeclared_axes_are_refused(case: Case, recorder: Recorder) -> None:
    for axes in (1, 2, 3, 4):
        if all(axes in link.axes for link in case.facts):
            continue
        try:
            case.factory(case.dims_for(case.head_dim, axes=axes))
        except OptionError as error:
            message = str(error)
            named = f"axes, not {axes}" in message or f"axis, not {axes}" in message
            require(named, f"{axes} axes are refused by: {message}")
        else:
            raise LawBroken(f"it is built for {axes} axes, which it does not declare")


@law("Loading a state dict restores the output of what was saved.")
def a_state_dict_carries_everything(case: Case, recorder: Recorder) -> None:
    x, pos = case.states(), case.positions()
    saved, restored = (AttentionStack(case, causal=case.facts.causal_only) for _ in range(2))
    restored.load_state_dict(saved.state_dict(), strict=True)
    what = "the output of what was saved and loaded"
    recorder.require_close(restored(x, pos), saved(x, pos), what)
