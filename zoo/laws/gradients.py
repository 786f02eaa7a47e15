"""Laws of gradients: finite, true, and one for each parameter."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zoo.attention.chain import Chain
from zoo.laws.case import Case, unplaced
from zoo.laws.law import EXACT, Recorder, error, law, require
from zoo.laws.test_model import Stack

STEPS = (3e-5, 3e-6, 1e-6)  # of differences: a shorter one where a longer one crosses a kink
TRUE = 1e-7  # what they may be off by in float64


def _gradients(
    stack: Stack, member: Case, placed: Tensor | None = None
) -> dict[str, Tensor | None]:
    """Those of all parameters but the ones whose gradient a softmax makes zero."""
    out = stack(member.states(), member.pos(), placed)
    (out * torch.randn_like(out)).sum().backward()
    constant = member.facts.zero_gradient  # without the layer's number
    found = stack.chains.named_parameters()
    return {name: one.grad for name, one in found if name.partition(".")[2] not in constant}


@law("Each parameter has a finite gradient at its initial value.")
def initial_gradients_are_finite(member: Case, seen: Recorder) -> None:
    before = Chain.of(member.make()).state_dict().keys()
    stack = Stack(member, causal=member.facts.causal_only)
    fresh = [Chain.of(member.make(layer)) for layer in range(2)]
    for moved, initial in zip(stack.chains, fresh, strict=True):
        moved.load_state_dict(initial.double().state_dict())
    require(before == fresh[0].state_dict().keys(), "two that are made alike have other parameters")
    for name, gradient in _gradients(stack, member).items():
        require(gradient is not None, f"{name} receives no gradient")
    for name, parameter in stack.chains.named_parameters():
        finite = parameter.grad is None or parameter.grad.isfinite().all()
        require(finite, f"{name} has a gradient that is not finite")


@law("Each parameter has a gradient other than zero once those that are zero at first were moved.")
def every_parameter_learns(member: Case, seen: Recorder) -> None:
    for name, gradient in _gradients(
        Stack(member, causal=member.facts.causal_only), member, unplaced()
    ).items():
        require(gradient is not None, f"{name} receives no gradient")
        assert gradient is not None
        seen.above(float(gradient.abs().max()), EXACT, f"the largest gradient of {name} is")


@law("Gradients are the slopes that differences of the output show.")
def gradients_are_slopes(member: Case, seen: Recorder) -> None:
    stack, x = Stack(member, causal=member.facts.causal_only), member.states(1).requires_grad_()
    weight = torch.randn_like(x)
    leaves = {"states": x, **dict(stack.chains.named_parameters())}

    def total() -> Tensor:
        return (stack(x, member.pos()) * weight).sum()

    gradients = torch.autograd.grad(total(), list(leaves.values()), allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        along = torch.randn_like(leaf)
        told = weight.new_zeros(()) if gradient is None else (gradient * along).sum()
        with torch.no_grad():
            for step in STEPS:
                near, far = (_difference(total, leaf, count * step * along) for count in (1, 2))
                slope = (8 * near - far) / (12 * step)  # wrong by the fourth power of a step
                if error(told, slope) <= TRUE:
                    break
        seen.near(told, slope, f"the gradient of {name} along a direction", TRUE)


def _difference(total: Callable[[], Tensor], leaf: Tensor, move: Tensor) -> Tensor:
    """What the total differs by between a leaf moved ahead and one moved back."""
    before, found = leaf.clone(), []
    for moved in (before + move, before - move):
        leaf.copy_(moved)
        found.append(total())
    leaf.copy_(before)
    return found[0] - found[1]


@law("Gradients are finite where all parameters are zero.")
def zero_parameters_give_finite_gradients(member: Case, seen: Recorder) -> None:
    stack = Stack(member, causal=member.facts.causal_only)
    for parameter in stack.chains.parameters():
        parameter.data.zero_()
    out = stack(member.states(), member.pos())
    out.square().sum().backward()
    require(out.isfinite().all(), "the output is not finite")
    stack.require_finite()
