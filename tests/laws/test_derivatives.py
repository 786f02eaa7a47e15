"""Faults of derivatives and transforms that the laws of `zoo.laws.derivatives` catch, and models under torch.func."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from faults import check_fault_is_caught, name_parameter
from language import decoder, text
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import zoo
from zoo.attention.backends import chunked
from zoo.attention.backends.fused import attend_plain
from zoo.encodings.rope_mixed import RoPEMixed
from zoo.errors import OptionError
from zoo.laws.derivatives import (
    second_derivatives_are_slopes,
    tangents_are_gradients,
    vmap_equals_a_loop,
)
from zoo.models.transformer import BlockOptions, find_transformers

ENCODINGS = ("rope", "comrope_ap", "liere", "path")


class Sine(torch.autograd.Function):
    """The sine, with rules of its own, all of them right."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx, tangent: Tensor) -> Tensor:
        return tangent * ctx.saved_tensors[0].cos()

    @staticmethod
    def vmap(info, in_dims, x: Tensor) -> tuple[Tensor, int]:
        return Sine.apply(x), in_dims[0]


class DetachedSine(Sine):
    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0].detach().cos()


class MismappedSine(Sine):
    @staticmethod
    def vmap(info, in_dims, x: Tensor) -> tuple[Tensor, int]:
        return 2 * Sine.apply(x), in_dims[0]


class UntangentSine(Sine):
    @staticmethod
    def jvp(ctx, tangent: Tensor) -> Tensor:
        return 2 * tangent * ctx.saved_tensors[0].cos()


class WithSine(RoPEMixed):
    """States pass through a sine."""

    sine = Sine

    def embed(self, tokens):
        return super().embed(tokens.replace(x=self.sine.apply(tokens.x)))


class OnceDifferentiable(WithSine):
    sine = DetachedSine


class Mismapped(WithSine):
    sine = MismappedSine


class Untangent(WithSine):
    sine = UntangentSine


FAULTS = [
    (second_derivatives_are_slopes, OnceDifferentiable),
    (vmap_equals_a_loop, Mismapped),
    (tangents_are_gradients, Untangent),
]


@pytest.mark.parametrize(("law", "fault"), FAULTS, ids=name_parameter)
def test_a_planted_fault_is_caught(law, fault):
    check_fault_is_caught(law, fault)


@pytest.mark.parametrize("law", [law for law, _ in FAULTS], ids=name_parameter)
def test_rules_that_are_right_pass(law):
    law(zoo.laws.Case("WithSine", 1, WithSine))


def make_double_decoder(name, **options):
    return decoder(name, **options).double()


def loss_of(model, parameters, row):
    logits = functional_call(model, parameters, (row[None],))
    return F.cross_entropy(logits[0, :-1], row[1:])


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("name", ENCODINGS)
def test_gradients_for_each_sample_are_those_of_a_loop(name, recomputes):
    model, rows = make_double_decoder(name), text(3)
    for transformer in find_transformers(model):
        transformer.activation_checkpointing = recomputes
    model.train(recomputes)
    parameters = dict(model.named_parameters())

    found = vmap(grad(lambda *inputs: loss_of(model, *inputs)), (None, 0))(parameters, rows)
    for index, row in enumerate(rows):
        loss = F.cross_entropy(model(row[None])[0, :-1], row[1:])
        wanted = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        for key, one in zip(parameters, wanted, strict=True):
            torch.testing.assert_close(found[key][index], one)


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_ensemble_computes_and_learns_what_its_members_do(name):
    members, rows = [make_double_decoder(name) for _ in range(2)], text(2)
    stacked, buffers = stack_module_state(members)
    frame = deepcopy(members[0]).to("meta")
    outputs = vmap(lambda *state: functional_call(frame, state, (rows,)))(stacked, buffers)
    outputs.square().sum().backward()

    for index, member in enumerate(members):
        out = member(rows)
        torch.testing.assert_close(outputs[index], out)
        out.square().sum().backward()
        for key, parameter in member.named_parameters():
            wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(stacked[key].grad[index], wanted)


# torch's own warning, at its first jvp of a process
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["rope", "comrope_ld", "liere", "alibi"])
def test_a_hessian_times_a_vector_is_the_same_in_every_order_of_modes(name):
    layer = zoo.Attention(zoo.Dims(16, 2, 1, 6), name).double()
    layer.layer.backend = "reference"
    x, direction = torch.randn(2, 1, 6, 16, dtype=torch.float64)

    def total(x):
        return layer(x).square().sum()

    _, wanted = torch.autograd.functional.hvp(total, x, direction)
    _, found = jvp(grad(total), (x,), (direction,))
    torch.testing.assert_close(found, wanted)
    nested = grad(lambda x: (grad(total)(x) * direction).sum())(x)
    torch.testing.assert_close(nested, wanted)


# torch's own warning, at its first jvp of a process
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_gradients_of_gated_networks_can_be_followed_forward():
    model, row = make_double_decoder("tape", block=BlockOptions(mlp="swiglu")), text(1)[0]
    parameters = {name: one.detach() for name, one in model.named_parameters()}
    directions = {name: torch.randn_like(one) for name, one in parameters.items()}
    _, wanted = jvp(grad(lambda state: loss_of(model, state, row)), (parameters,), (directions,))
    with forward_ad.dual_level():
        dual = {
            name: forward_ad.make_dual(one.clone().requires_grad_(), directions[name])
            for name, one in parameters.items()
        }
        total = loss_of(model, dual, row)
        found = torch.autograd.grad(total, list(dual.values()), materialize_grads=True)
        for name, one in zip(dual, found, strict=True):
            tangent = forward_ad.unpack_dual(one).tangent
            assert tangent is not None or not wanted[name].any()
            if tangent is not None:
                torch.testing.assert_close(tangent, wanted[name])


# torch's own warning about the speed of some operations
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("backend", ["auto", "chunked"])
@pytest.mark.parametrize("name", [*ENCODINGS, "comrope_ld", "fox", "t5", "xpos"])
def test_several_gradients_at_once_are_those_of_a_loop(name, backend, monkeypatch):
    monkeypatch.setattr(chunked, "MIN_ROWS", 2)
    monkeypatch.setattr(chunked, "CHUNK_BYTES", {"cpu": 0})
    entry = {"name": name, "coordinates": "index"}
    layer = zoo.Attention(zoo.Dims(48, 2, 1, 6), entry, causal=True).double()
    layer.layer.backend = backend
    x = torch.randn(1, 6, 48, dtype=torch.float64, requires_grad=True)
    out, leaves = layer(x), [x, *layer.parameters()]
    options = {"retain_graph": True, "materialize_grads": True}
    weights = torch.randn(3, *out.shape, dtype=torch.float64)
    found = torch.autograd.grad(out, leaves, weights, is_grads_batched=True, **options)
    for row, weight in enumerate(weights):
        wanted = torch.autograd.grad(out, leaves, weight, **options)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one[row], other)


def test_a_fused_kernel_refuses_a_second_derivative_by_name():
    layer = zoo.Attention(zoo.Dims(16, 2, 1, 6), "rope")
    x = torch.randn(1, 6, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(OptionError, match="no second derivative; use backend=reference"):
        torch.autograd.grad(gradient.sum(), x)

    # The kernel of plain operations has one, and a leaf keeps no hook.
    with sdpa_kernel(SDPBackend.MATH):
        total = layer(x).square().sum()
    (gradient,) = torch.autograd.grad(total, x, create_graph=True)
    assert torch.autograd.grad(gradient.sum(), x)[0].isfinite().all()
    heads = [torch.randn(1, 2, 6, 8, requires_grad=True) for _ in range(3)]
    attend_plain(*heads, scale=None).sum().backward()
    assert not any(one._backward_hooks for one in heads)


def test_flex_refuses_transforms_by_name():
    layer = zoo.Attention(zoo.Dims(16, 2, 1, 6), "alibi")
    layer.layer.backend = "flex"
    with pytest.raises(OptionError, match="cannot transform flex; use sdpa, chunked or reference"):
        vmap(layer)(torch.randn(2, 1, 6, 16))
