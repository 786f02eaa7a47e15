"""Laws about backends and precisions: equal results, and attention weights from 0 to 1."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from functools import partial
from io import StringIO
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention

from zoo.attention.backends import chunked
from zoo.attention.backends.dispatch import attend
from zoo.attention.backends.reference import apply_weights, attention_mask, weights
from zoo.attention.coordinates import grid, grid_shape
from zoo.attention.functional import Attention
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError
from zoo.laws.attention_stack import AttentionStack, perturb
from zoo.laws.case import TOKENS, Case, packed_documents, position_mask
from zoo.laws.law import (
    ROUNDING,
    LawBroken,
    Recorder,
    exempt_far,
    exempt_full_sequence,
    law,
    require,
)

# Largest error of bfloat16 in states of order one after two layers.
BFLOAT16_ERROR = 0.06

# Largest error of float32 at this position. Tokens there are near each other.
FLOAT32_ERROR, FAR = 1e-5, 1_000_000

# For each number of axes: batch size and grid of the example to capture, and of those to compare.
EXPORT_SIZES = {
    1: ((2, 12), (1, 5), (3, 40), (3, 300)),
    2: ((2, 3, 4), (1, 4, 4), (3, 5, 2), (2, 9, 12)),
    3: ((2, 2, 3, 2), (1, 3, 2, 2), (3, 2, 5, 4), (2, 4, 4, 3)),
}


@law(
    "Under autocast to bfloat16, outputs far from the start stay close to those of float32.",
    exempt_far,
)
def bfloat16_stays_close(case: Case, recorder: Recorder) -> None:
    stack = AttentionStack(case, causal=case.facts.causal_only).float()
    x = case.states().float()
    # An angle or a sum that is rounded to bfloat16 would be off by more than 1 at this position.
    far = 5000 if case.axes == 1 else 100
    pos = (case.positions() + far).float()
    exact = stack(x, pos)
    with torch.autocast("cpu", torch.bfloat16):
        out = stack(x, pos).float()
    out.square().sum().backward()
    stack.require_finite()
    quantity = f"the output under bfloat16 at position {far}, against float32"
    recorder.require_close(out, exact, quantity, BFLOAT16_ERROR)


def _exempt_near(case: Case) -> str:
    if any(link.coordinates == "growing" for link in case.facts):
        return "its coordinates are between 0 and 1"
    stack = AttentionStack(case, causal=case.facts.causal_only, layers=1)
    try:
        stack(case.states(), case.positions() + FAR)
    except OptionError:
        return f"it refuses position {FAR:,}"
    return ""


@law(
    f"In float32, attention between near tokens at position {FAR:,} equals that in float64.",
    _exempt_near,
)
def float32_is_exact_far_away(case: Case, recorder: Recorder) -> None:
    stack = AttentionStack(case, causal=case.facts.causal_only).float()
    exact = deepcopy(stack).double()
    x, pos = case.states().float(), case.positions() + FAR
    quantity = f"the output in float32 at position {FAR:,}, against float64"
    actual = stack(x, pos.float()).double()
    recorder.require_close(actual, exact(x.double(), pos), quantity, FLOAT32_ERROR)


@law("Parameters in bfloat16 give an output in bfloat16, and finite gradients.")
def weights_may_be_bfloat16(case: Case, recorder: Recorder) -> None:
    stack, x = AttentionStack(case, causal=case.facts.causal_only), case.states()
    try:
        out = stack.bfloat16()(x.bfloat16(), case.positions().float())
    # For example a norm that receives another dtype than that of its weight.
    except RuntimeError as error:
        raise LawBroken(f"with parameters in bfloat16: {error}") from error
    out.float().square().sum().backward()
    dtype = f"the output is {out.dtype} for parameters and states in bfloat16"
    require(out.dtype == torch.bfloat16, dtype)
    require(out.isfinite().all(), "the output is not finite for parameters in bfloat16")
    stack.require_finite()


@law("Attention weights are nonnegative, zero for hidden keys, and sum to at most 1.")
def weights_are_shares_of_what_is_visible(case: Case, recorder: Recorder) -> None:
    for causal in case.causal_modes:
        for where in ((), (position_mask(), packed_documents())):
            stack = AttentionStack(case, causal=causal, layers=1)
            call = stack.call(case.states(), case.positions(), *where)
            shares = weights(call).detach()
            least = float(shares.min())
            require(least >= 0, f"an attention weight is {least:.1e}, less than zero")
            hidden = shares.masked_select(~attention_mask(call))
            require((hidden == 0).all(), "a hidden key has a weight")
            most = float(shares.sum(-1).max())
            require(most <= 1 + ROUNDING, f"the weights of a query sum to {most:.9g}, over 1")


@law("A query without visible keys has output zero and finite gradients.")
def a_masked_row_gives_nothing(case: Case, recorder: Recorder) -> None:
    padding = packed_documents()[0] < 0
    for causal in case.causal_modes:
        for backend in ("reference", "auto"):
            stack = AttentionStack(case, causal=causal, layers=1)
            call = stack.call(case.states(), case.positions(), None, packed_documents())
            out, _ = attend(call, backend)
            # An encoding may add to the output by the weights, for example a remainder.
            extra = torch.zeros_like(out)
            if call.extra_output is not None:
                extra = call.extra_output(weights(call), call.full_span)
            quantity = "the output of a query without visible keys"
            recorder.require_close(out[:, :, padding], extra[:, :, padding], quantity)
            out.square().sum().backward()
            stack.require_finite()


def _require_equal(
    recorder: Recorder, expected: dict[str, Tensor], actual: dict[str, Tensor], how: str
) -> None:
    for quantity, value in expected.items():
        recorder.require_close(actual[quantity], value, f"{quantity} {how}")


@law("SDPA gives the output and the gradients of the reference, or refuses with a message.")
def reference_and_sdpa_agree(case: Case, recorder: Recorder) -> None:
    for causal in case.causal_modes:
        stack, x = AttentionStack(case, causal=causal), case.states().requires_grad_()
        for where in ((case.positions(),), (case.positions(), position_mask(), packed_documents())):
            if stack.supports("sdpa", x, case.positions()):
                exact = stack.results(x, *where, backend="reference")
                fused = stack.results(x, *where, backend="sdpa")
                _require_equal(recorder, exact, fused, "by sdpa, against the reference")
            else:
                _require_refusal("sdpa", partial(stack.results, x, *where, backend="sdpa"))


def _require_refusal(backend: str, compute: Callable[[], object]) -> None:
    try:
        compute()
    except OptionError as error:
        require("use reference" in str(error), f"{backend} is refused by: {error}")
    else:
        raise LawBroken(f"{backend} computes what needs whole rows of scores")


@law("Attention in chunks of queries gives the output and the gradients of the reference.")
def reference_and_chunks_agree(case: Case, recorder: Recorder) -> None:
    for causal in case.causal_modes:
        stack, x = AttentionStack(case, causal=causal), case.states().requires_grad_()
        for where in ((case.positions(),), (case.positions(), position_mask(), packed_documents())):
            exact = stack.results(x, *where, backend="reference")
            # These bounds divide the queries into several chunks.
            with patch.multiple(chunked, MIN_ROWS=5, CHUNK_BYTES={"cpu": 0}):
                parts = stack.results(x, *where, backend="chunked")
            _require_equal(recorder, exact, parts, "in chunks, against the whole")


@law("FlexAttention gives the output of the reference, or refuses with a message.")
@torch.no_grad()
def reference_and_flex_agree(case: Case, recorder: Recorder) -> None:
    for causal in case.causal_modes:
        stack, x = AttentionStack(case, causal=causal, layers=1), case.states()
        where = (position_mask(), packed_documents()) if causal else ()
        call = stack.call(x, case.positions(), *where)
        if stack.supports("flex", x, case.positions()):
            exact = attend(call, "reference")[0]
            # On a CPU flex_attention would trace each call, only to run it eagerly.
            with patch.object(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
                fused = attend(call, "flex")[0]
            recorder.require_close(fused, exact, "the output by flex, against the reference")
        else:
            _require_refusal("flex", partial(attend, call, "flex"))


@law(
    "The shortcut for consecutive positions gives the same output and gradients.",
    exempt_full_sequence,
)
def index_differences_are_offsets(case: Case, recorder: Recorder) -> None:
    stack, x = AttentionStack(case, causal=True), case.states().requires_grad_()
    consecutive = stack.results(x, case.positions())
    stack.declare_consecutive = False
    general = stack.results(x, case.positions())
    _require_equal(recorder, general, consecutive, "of tokens known to be consecutive")


@law("torch.compile captures the encoding as one graph with the same output and gradients.")
def a_compiler_captures_it(case: Case, recorder: Recorder, backend: str = "aot_eager") -> None:
    torch._dynamo.reset()
    layer = Attention(
        case.dims,
        case.build(),
        causal=case.facts.causal_only,
        softcap=case.softcap,
        sinks=case.sinks,
        temperature=case.temperature,
    ).double()
    perturb(layer)
    x = case.states().requires_grad_()
    graphs: list[torch.fx.GraphModule] = []

    def capture(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    eager = _output_and_gradients(layer, layer, x)
    compiled = _output_and_gradients(
        torch.compile(layer, fullgraph=True, backend=capture), layer, x
    )
    switched_off = "no graph is captured; is the compiler switched off (TORCHDYNAMO_DISABLE)?"
    require(bool(graphs), switched_off)
    for actual, expected in zip(compiled, eager, strict=True):
        recorder.require_close(actual, expected, "the output and gradients after compilation")


def _output_and_gradients(
    run: Callable[[Tensor], Tensor], layer: Attention, x: Tensor
) -> list[Tensor]:
    torch.manual_seed(0)  # for random augmentation in training
    try:
        out = run(x)
    except torch._dynamo.exc.TorchDynamoException as error:
        reason = " ".join(str(error).split())[:300]
        raise LawBroken(f"no graph is captured: {reason}") from error
    leaves = [x, *layer.parameters()]
    gradients = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
    return [out, *(gradient for gradient in gradients if gradient is not None)]


class _OnGrid(nn.Module):
    """An attention stack that makes tokens of states on a grid, as models do."""

    def __init__(self, stack: AttentionStack) -> None:
        super().__init__()
        self.stack = stack

    def forward(self, states: Tensor) -> Tensor:
        """Compute the output [B, N, D] of states [B, ..., D], on a line or on a grid."""
        x, sizes = states.flatten(1, -2), states.shape[1:-1]
        ordered = self.stack.causal
        tokens = Tokens.at(x, grid(sizes, x), ordered=ordered).replace(consecutive=ordered)
        # The length of a sequence is unknown to a causal model.
        if not ordered:
            tokens = tokens.replace(grid_size=grid_shape(sizes, x))
        return self.stack.run(tokens)


def _exempt_not_exported(case: Case) -> str:
    return case.facts.no_export_reason or exempt_far(case)


@law(
    "torch.export captures the encoding once for all batch sizes and all lengths or resolutions.",
    _exempt_not_exported,
)
@torch.no_grad()
def exports_at_any_size(case: Case, recorder: Recorder) -> None:
    example_size, *remaining_sizes = EXPORT_SIZES[case.axes]
    for causal in case.causal_modes:
        # No model of images or videos has a causal mask.
        if causal and case.axes > 1:
            continue
        model = _OnGrid(AttentionStack(case, causal=causal))
        exported = _export(model, torch.randn(*example_size, case.dims.dim, dtype=torch.float64))
        for batch, *sizes in remaining_sizes:
            states = torch.randn(batch, *sizes, case.dims.dim, dtype=torch.float64)
            quantity = f"the output after export, for {batch} samples of size {sizes}"
            recorder.require_close(exported(states), model(states), quantity)


def _export(model: nn.Module, states: Tensor) -> nn.Module:
    """Capture a model of states [B, ..., D] with variable sizes.

    Raises:
        LawBroken: torch.export cannot capture it.
    """
    varying = dict.fromkeys(range(states.dim() - 1), torch.export.Dim.DYNAMIC)
    try:
        # For a graph that it cannot capture, torch.export prints more than a screen.
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            program = torch.export.export(model, (states,), dynamic_shapes=(varying,))
    # The errors of torch.export have no common class.
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise LawBroken(f"it is not exported, {type(error).__name__}: {reason}") from error
    return program.module()


@law("Results of chosen queries are rows of the results of all queries.")
@torch.no_grad()
def chosen_queries_are_rows_of_the_whole(case: Case, recorder: Recorder) -> None:
    index = torch.tensor([8, 1, 5, TOKENS - 1])
    where = (case.positions(), position_mask(), packed_documents())
    for causal in case.causal_modes:
        stack, x = AttentionStack(case, causal=causal, layers=1), case.states()
        whole, chosen = stack.call(x, *where), stack.call(x, *where, index)
        shares = weights(chosen)
        recorder.require_close(shares, weights(whole)[:, :, index], "weights of chosen queries")

        expected = attend(whole)[0][:, :, index]
        mixed = apply_weights(chosen, shares)[..., : expected.shape[-1]]
        if chosen.transform_output is not None:
            mixed = chosen.transform_output(mixed)
        recorder.require_close(mixed, expected, "the output of chosen queries")
        recorder.require_close(attend(chosen)[0], expected, "the output of chosen queries")
