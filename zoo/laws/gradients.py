"""Laws about shapes, axes, parameters and gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zoo.attention import functional
from zoo.attention.chain import Chain
from zoo.errors import OptionError
from zoo.laws.attention_stack import AttentionStack
from zoo.laws.case import BATCH, TOKENS, Case, position_mask
from zoo.laws.law import ROUNDING, LawBroken, Recorder, law, relative_error, require

# Steps of finite differences; a shorter one is tried if a longer one may cross a kink.
STEPS = (3e-5, 3e-6, 1e-6)
TOLERANCE = 1e-7  # largest error of gradients in float64


@law(
    "Embedding, scores, weights and output keep their shapes, also for only the last queries, and "
    "where all heads together are wider or narrower than the states."
)
def shapes_are_kept(case: Case, recorder: Recorder) -> None:
    for variant in case.widths:
        _check_shapes(variant)


def _check_shapes(case: Case) -> None:
    encoding, x, pos = case.build().double(), case.states(), case.positions()
    _require_shape("the embedding", functional.embed(encoding, x, pos), *x.shape)
    for causal in case.causal_modes:
        for n in (TOKENS, 5):
            q, k, v = (
                torch.randn(BATCH, case.heads, count, case.head_dim).double()
                for count in (n, TOKENS, TOKENS)
            )
            scores = functional.scores(encoding, q, k, pos, x=x, causal=causal)
            shares = functional.weights(encoding, q, k, pos, x=x, causal=causal)
            out = functional.attend(encoding, q, k, v, pos, x=x, causal=causal)
            _require_shape("scores", scores, BATCH, case.heads, n, TOKENS)
            _require_shape("weights", shares, BATCH, case.heads, n, TOKENS)
            _require_shape("the output", out, *q.shape)


def _require_shape(quantity: str, actual: Tensor, *shape: int) -> None:
    require(actual.shape == shape, f"{quantity}: shape {tuple(actual.shape)}, not {shape}")


@law("Undeclared numbers of axes are refused, with a message that names the accepted ones.")
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
            raise LawBroken(f"it accepts {axes} axes, which it does not declare")


@law("Encodings that declare it, and no others, read states, and refuse to compute without them.")
@torch.no_grad()
def states_are_read_as_declared(case: Case, recorder: Recorder) -> None:
    encoding, x, pos = case.build().double().eval(), case.states(), case.positions()
    declared = case.facts.reads_states
    q, k = torch.randn(2, BATCH, case.heads, TOKENS, case.head_dim, dtype=torch.float64)
    for causal in case.causal_modes:
        scores, unknown = (
            functional.scores(encoding, q, k, pos, x=states, causal=causal)
            for states in (x, torch.full_like(x, torch.nan))
        )
        changed = not torch.equal(scores, unknown)
        fact = f"it declares reads_states = {declared}"
        require(changed == declared, f"states {'' if changed else 'do not '}change scores; {fact}")

        try:
            functional.scores(encoding, q, k, pos, causal=causal)
        except OptionError as error:
            require(declared and error.key == "x", f"without states it is refused by: {error}")
        else:
            require(not declared, f"without states it computes scores; {fact}")


@law("Loading a state dict restores the output of the saved module.")
def a_state_dict_carries_everything(case: Case, recorder: Recorder) -> None:
    x, pos = case.states(), case.positions()
    saved, restored = (AttentionStack(case, causal=case.facts.causal_only) for _ in range(2))
    restored.load_state_dict(saved.state_dict(), strict=True)
    quantity = "the output after saving and loading"
    recorder.require_close(restored(x, pos), saved(x, pos), quantity)


def _backward(
    stack: AttentionStack, case: Case, has_position: Tensor | None = None
) -> dict[str, Tensor | None]:
    """Return the gradients of all parameters, except those that are zero under a softmax."""
    out = stack(case.states(), case.positions(), has_position)
    (out * torch.randn_like(out)).sum().backward()
    zero = case.facts.zero_gradient  # names without the number of the layer
    parameters = stack.chains.named_parameters()
    return {
        name: parameter.grad for name, parameter in parameters if name.partition(".")[2] not in zero
    }


@law("Each parameter has a finite gradient at its initial value.")
def initial_gradients_are_finite(case: Case, recorder: Recorder) -> None:
    # The stack has perturbed its parameters: load initial values again.
    names = Chain.of(case.build()).state_dict().keys()
    stack = AttentionStack(case, causal=case.facts.causal_only)
    fresh = [Chain.of(case.build(layer)) for layer in range(2)]
    for perturbed, initial in zip(stack.chains, fresh, strict=True):
        perturbed.load_state_dict(initial.double().state_dict())
    same = "two instances with the same options have different parameters"
    require(names == fresh[0].state_dict().keys(), same)

    for name, gradient in _backward(stack, case).items():
        require(gradient is not None, f"{name} receives no gradient")
    for name, parameter in stack.chains.named_parameters():
        finite = parameter.grad is None or parameter.grad.isfinite().all()
        require(finite, f"{name} has a gradient that is not finite")


@law("Each parameter has a nonzero gradient once parameters that start at zero have moved.")
def every_parameter_learns(case: Case, recorder: Recorder) -> None:
    stack = AttentionStack(case, causal=case.facts.causal_only)
    for name, gradient in _backward(stack, case, position_mask()).items():
        require(gradient is not None, f"{name} receives no gradient")
        assert gradient is not None
        largest = float(gradient.abs().max())
        recorder.require_above(largest, ROUNDING, f"the largest gradient of {name} is")


@law("Gradients equal finite differences of the output.")
def gradients_are_slopes(case: Case, recorder: Recorder) -> None:
    stack = AttentionStack(case, causal=case.facts.causal_only)
    x = case.states(1).requires_grad_()
    weight = torch.randn_like(x)
    leaves = {"states": x, **dict(stack.chains.named_parameters())}

    def total() -> Tensor:
        return (stack(x, case.positions()) * weight).sum()

    gradients = torch.autograd.grad(total(), list(leaves.values()), allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        direction = torch.randn_like(leaf)
        actual = weight.new_zeros(()) if gradient is None else (gradient * direction).sum()
        with torch.no_grad():
            for step in STEPS:
                # The five-point central difference has an error of order step^4.
                near, far = (_difference(total, leaf, n * step * direction) for n in (1, 2))
                slope = (8 * near - far) / (12 * step)
                if relative_error(actual, slope) <= TOLERANCE:
                    break
        quantity = f"the gradient of {name} along a direction"
        recorder.require_close(actual, slope, quantity, TOLERANCE)


def _difference(total: Callable[[], Tensor], leaf: Tensor, move: Tensor) -> Tensor:
    """Return total(leaf + move) - total(leaf - move), and restore the leaf."""
    before, totals = leaf.clone(), []
    for moved in (before + move, before - move):
        leaf.copy_(moved)
        totals.append(total())
    leaf.copy_(before)
    return totals[0] - totals[1]


@law("The output and its gradients are finite if all parameters are zero.")
def zero_parameters_give_finite_gradients(case: Case, recorder: Recorder) -> None:
    stack = AttentionStack(case, causal=case.facts.causal_only)
    for parameter in stack.chains.parameters():
        parameter.data.zero_()
    out = stack(case.states(), case.positions())
    out.square().sum().backward()
    require(out.isfinite().all(), "the output is not finite")
    stack.require_finite()
