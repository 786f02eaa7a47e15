"""Laws of interpreters: whatever computes attention, what comes out is the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.attention import flex_attention

from zoo.api import Attention
from zoo.attention.backends import chunked
from zoo.attention.backends.dispatch import attend
from zoo.attention.backends.reference import apply_weights, weights
from zoo.errors import OptionError
from zoo.laws.case import TOKENS, Case, document, unplaced
from zoo.laws.law import LawBroken, Recorder, grows, law, require
from zoo.laws.test_model import Stack, perturb


def _agree(
    seen: Recorder, one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], who: str
) -> None:
    for what, expected in one.items():
        seen.near(other[what], expected, f"{what} {who}")


@law(
    "Fused attention gives the output and the gradients of the definition, or refuses with a message."
)
def reference_and_sdpa_agree(member: Case, seen: Recorder) -> None:
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states().requires_grad_()
        for where in ((member.pos(),), (member.pos(), unplaced(), document())):
            if stack.fused(x, member.pos()):
                exact = stack.results(x, *where, backend="reference")
                _agree(
                    seen,
                    exact,
                    stack.results(x, *where, backend="sdpa"),
                    "by sdpa, against the reference",
                )
            else:
                _refused("sdpa", partial(stack.results, x, *where, backend="sdpa"))


def _refused(backend: str, compute: Callable[[], object]) -> None:
    try:
        compute()
    except OptionError as error:
        require("use reference" in str(error), f"{backend} is refused by: {error}")
    else:
        raise LawBroken(f"{backend} computes what needs whole rows of scores")


@law("Attention in chunks of queries gives the output and the gradients of the definition.")
def reference_and_chunks_agree(member: Case, seen: Recorder) -> None:
    for causal in member.masks:
        stack, x = Stack(member, causal=causal), member.states().requires_grad_()
        for where in ((member.pos(),), (member.pos(), unplaced(), document())):
            exact = stack.results(x, *where, backend="reference")
            with patch.multiple(chunked, LEAST=5, ROOM={"cpu": 0}):  # so that there are several
                parts = stack.results(x, *where, backend="chunked")
            _agree(seen, exact, parts, "in chunks, against the whole")


@law("FlexAttention gives the output of the definition, or refuses with a message.")
@torch.no_grad()
def reference_and_flex_agree(member: Case, seen: Recorder) -> None:
    for causal in member.masks:
        stack, x = Stack(member, causal=causal, layers=1), member.states()
        call = stack.call(x, member.pos(), *((unplaced(), document()) if causal else ()))
        if stack.fused(x, member.pos()):
            # on a CPU it would trace each call to run it eagerly
            with patch.object(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
                seen.near(
                    attend(call, "flex")[0],
                    attend(call, "reference")[0],
                    "the output by flex, against the reference",
                )
        else:
            _refused("flex", partial(attend, call, "flex"))


@law(
    "Where tokens are one place apart, offsets that are differences of slots give the same.", grows
)
def differences_of_slots_are_offsets(member: Case, seen: Recorder) -> None:
    stack, x = Stack(member, causal=True), member.states().requires_grad_()
    told = stack.results(x, member.pos())
    stack.even = False
    _agree(seen, stack.results(x, member.pos()), told, "of tokens known to be one place apart")


@law("A compiler captures it as one graph, which gives the same output and gradients.")
def a_compiler_captures_it(member: Case, seen: Recorder, backend: str = "aot_eager") -> None:
    torch._dynamo.reset()
    layer = Attention(member.dims, member.make(), causal=member.facts.causal_only).double()
    perturb(layer)
    x = member.states().requires_grad_()
    leaves, results, graphs = (
        [x, *layer.parameters()],
        list[list[torch.Tensor]](),
        list[torch.fx.GraphModule](),
    )

    def captured(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    for run in (layer, torch.compile(layer, fullgraph=True, backend=captured)):
        torch.manual_seed(0)  # for what training draws
        try:
            out = run(x)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise LawBroken(
                f"no graph is captured: {' '.join(str(error).split())[:300]}"
            ) from error
        gradients = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
        results.append([out, *(g for g in gradients if g is not None)])
    require(
        bool(graphs), "no graph is captured; is the compiler switched off (TORCHDYNAMO_DISABLE)?"
    )
    for eager, compiled in zip(*results, strict=True):
        seen.near(compiled, eager, "the output and gradients of what was compiled")


@law("Queries at chosen slots are rows of the whole.")
@torch.no_grad()
def chosen_queries_are_rows_of_the_whole(member: Case, seen: Recorder) -> None:
    slots = torch.tensor([8, 1, 5, TOKENS - 1])
    for causal in member.masks:
        stack, x = Stack(member, causal=causal, layers=1), member.states()
        whole, chosen = (
            stack.call(x, member.pos(), unplaced(), document(), some) for some in (None, slots)
        )
        seen.near(weights(chosen), weights(whole)[:, :, slots], "weights of chosen queries")
        expected = attend(whole)[0][:, :, slots]
        mixed = apply_weights(chosen, weights(chosen))[..., : expected.shape[-1]]
        seen.near(mixed, expected, "the output of chosen queries")
        seen.near(attend(chosen)[0], expected, "the output of chosen queries")
