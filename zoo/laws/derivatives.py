"""Laws about second derivatives and about transforms by torch.func."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap

from zoo.attention.backends import chunked
from zoo.attention.layer import SelfAttention
from zoo.laws.attention_stack import AttentionStack
from zoo.laws.case import Case
from zoo.laws.law import Recorder, law, relative_error

# Steps of finite differences. Gradients jump where a layer has a ReLU, so a step as short as
# rounding allows is tried last.
STEPS = (3e-5, 1e-6, 3e-8)
TOLERANCE = 1e-6  # largest error of second derivatives in float64

Leaves = dict[str, Tensor]
"""The states, and all parameters of a stack by their names."""


@law("Second derivatives equal finite differences of gradients, by the reference and in chunks.")
def second_derivatives_are_slopes(case: Case, recorder: Recorder) -> None:
    for backend in ("reference", "chunked"):
        stack = AttentionStack(case, causal=case.facts.causal_only)
        with _use_backend(stack, backend):
            _check_second_derivatives(stack, case, recorder)


def _check_second_derivatives(stack: AttentionStack, case: Case, recorder: Recorder) -> None:
    leaves = _make_leaves(stack, case)
    weight = torch.randn_like(leaves["states"])
    directions = {name: torch.randn_like(leaf) for name, leaf in leaves.items()}

    def differentiate(create_graph: bool = False) -> Leaves:
        out = stack(leaves["states"], case.positions())
        return _differentiate((out * weight).sum(), leaves, create_graph)

    gradients = differentiate(create_graph=True)
    along = torch.stack([(gradients[name] * directions[name]).sum() for name in leaves]).sum()
    second = _differentiate(along, leaves)

    def difference(step: float) -> Leaves:
        """Return the gradients at leaves + step * directions, less those at leaves - step * .."""
        with _move(leaves, directions, step):
            ahead = differentiate()
        with _move(leaves, directions, -step):
            behind = differentiate()
        return {name: ahead[name] - behind[name] for name in leaves}

    for step in STEPS:
        # The five-point central difference has an error of order step^4.
        near, far = difference(step), difference(2 * step)
        slopes = {name: (8 * near[name] - far[name]) / (12 * step) for name in leaves}
        if all(relative_error(second[name], slopes[name]) <= TOLERANCE for name in leaves):
            break
    for name in leaves:
        quantity = f"the second derivative of {name} along a direction"
        recorder.require_close(second[name], slopes[name], quantity, TOLERANCE)


@law("torch.vmap over samples gives the outputs and the gradients of a loop over samples.")
def vmap_equals_a_loop(case: Case, recorder: Recorder) -> None:
    for backend in ("auto", "chunked"):
        stack = AttentionStack(case, causal=case.facts.causal_only)
        with _use_backend(stack, backend):
            _check_vmap(stack, case, recorder)


def _check_vmap(stack: AttentionStack, case: Case, recorder: Recorder) -> None:
    parameters: Leaves = dict(stack.named_parameters())
    states = case.states()
    weight = torch.randn_like(states[:1])

    def total(parameters: Leaves, x: Tensor) -> tuple[Tensor, Tensor]:
        out = functional_call(stack, parameters, (x[None], case.positions()))
        return (out * weight).sum(), out[0]

    mapped = vmap(grad(total, has_aux=True), in_dims=(None, 0))
    gradients, outputs = mapped(parameters, states)
    for row, sample in enumerate(states):
        loss, out = total(parameters, sample)
        recorder.require_close(outputs[row], out, "the output of a sample by vmap")
        for name, expected in _differentiate(loss, parameters).items():
            quantity = f"the gradient of {name} of a sample by vmap"
            recorder.require_close(gradients[name][row], expected, quantity)


@law("torch.func.jvp gives the products of gradients and directions.")
def tangents_are_gradients(case: Case, recorder: Recorder) -> None:
    for backend in ("auto", "chunked"):
        stack = AttentionStack(case, causal=case.facts.causal_only)
        with _use_backend(stack, backend):
            _check_tangents(stack, case, recorder)


def _check_tangents(stack: AttentionStack, case: Case, recorder: Recorder) -> None:
    leaves = _make_leaves(stack, case)
    weight = torch.randn_like(leaves["states"])
    directions = {name: torch.randn_like(leaf) for name, leaf in leaves.items()}

    def total(leaves: Leaves) -> Tensor:
        parameters = {name: leaf for name, leaf in leaves.items() if name != "states"}
        out = functional_call(stack, parameters, (leaves["states"], case.positions()))
        return (out * weight).sum()

    gradients = _differentiate(total(leaves), leaves)
    products = torch.stack([(gradients[name] * directions[name]).sum() for name in leaves])
    with warnings.catch_warnings():
        # torch's own, at its first jvp of a process
        warnings.filterwarnings("ignore", ".*torch.jit.script")
        tangent = jvp(total, (leaves,), (directions,))[1]
    recorder.require_close(tangent, products.sum(), "the derivative by jvp")


def _make_leaves(stack: AttentionStack, case: Case) -> Leaves:
    return {"states": case.states().requires_grad_(), **dict(stack.named_parameters())}


def _differentiate(total: Tensor, leaves: Leaves, create_graph: bool = False) -> Leaves:
    """Return the gradients of all leaves, zeros where a leaf has no effect."""
    gradients = torch.autograd.grad(
        total, list(leaves.values()), create_graph=create_graph, materialize_grads=True
    )
    return dict(zip(leaves, gradients, strict=True))


@contextmanager
def _use_backend(stack: AttentionStack, backend: str) -> Iterator[None]:
    """Compute the attention of a stack by a backend, if by chunks, by several."""
    for layer in stack.layers:
        assert isinstance(layer, SelfAttention)
        layer.backend = backend
    with patch.multiple(chunked, MIN_ROWS=5, CHUNK_BYTES={"cpu": 0}):
        yield


@contextmanager
def _move(leaves: Leaves, directions: Leaves, step: float) -> Iterator[None]:
    """Add multiples of directions to leaves, and restore the leaves."""
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    with torch.no_grad():
        for name, leaf in leaves.items():
            leaf.add_(directions[name], alpha=step)
    yield
    with torch.no_grad():
        for name, leaf in leaves.items():
            leaf.copy_(before[name])
