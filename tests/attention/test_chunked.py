"""Attention in chunks of queries: the definition, in memory that grows with the keys and not with the pairs."""

from __future__ import annotations

import pytest
import torch
from largest import Largest

import zoo
from zoo.attention.backends import biased_softmax
from zoo.attention.backends import chunked as chunking
from zoo.encodings import kerple, t5

TOKENS = 48


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(chunking, "MIN_ROWS", 5)
    monkeypatch.setattr(chunking, "CHUNK_BYTES", {"cpu": 0})


def layer(*names):
    return zoo.Attention(zoo.Dims(32, 4, length=TOKENS, depth=2), list(names), causal=True).double()


def step(model, x):
    """Output, and gradients of x and of all parameters."""
    x = x.clone().requires_grad_()
    out = model(x)
    return [out, *torch.autograd.grad(out.square().sum(), [x, *model.parameters()])]


LISTS = {
    "cope": [{"name": "cope", "max_positions": 4}],
    "stickbreaking": ["stickbreaking"],
    "dape": ["kerple", {"name": "dape", "hidden": 4}],
    "fire": [{"name": "fire", "hidden": 4}],
    "shaw": [{"name": "shaw", "max_distance": 2}],
    "sandwich": ["sandwich"],
    "grape_ap": [{"name": "grape_ap", "size": 4}],
}


@pytest.mark.parametrize("name", LISTS)
def test_no_tensor_has_a_number_for_each_pair(name):
    model, x = layer(*LISTS[name]), torch.randn(2, TOKENS, 32).double()
    with Largest() as seen:
        step(model, x)
    model.layer.backend = "reference"
    with Largest() as all_pairs:
        step(model, x)
    assert all_pairs.most >= 2 * 4 * TOKENS**2
    assert seen.most < all_pairs.most / 3


def test_bytes_kept_for_the_backward_pass_grow_with_the_tokens():
    def count_bytes(backend, tokens):
        kept = {}
        model = layer(*LISTS["grape_ap"])
        model.layer.backend = backend

        def keep(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = model(torch.randn(2, tokens, 32).double().requires_grad_())
        assert out.requires_grad
        return sum(kept.values())

    few, more = (count_bytes("auto", tokens) for tokens in (TOKENS, 2 * TOKENS))
    assert more < 2.2 * few
    assert count_bytes("reference", 2 * TOKENS) > 3 * count_bytes("reference", TOKENS)


def test_gradients_add_up_over_several_passes():
    model, x = layer("cope"), torch.randn(2, TOKENS, 32).double()
    once = step(model, x)[2:]
    for _ in range(2):
        model(x).square().sum().backward()
    for one, parameter in zip(once, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, 2 * one)


def test_a_graph_that_is_kept_gives_the_same_gradients_again():
    model, x = layer("kerple"), torch.randn(2, TOKENS, 32).double().requires_grad_()
    loss = model(x).square().sum()
    first = torch.autograd.grad(loss, x, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], first)


@pytest.mark.nightly
def test_a_compiler_captures_the_chunks(monkeypatch):
    monkeypatch.setattr(chunking, "MIN_ROWS", TOKENS // 2)
    model, x = layer("kerple"), torch.randn(2, TOKENS, 32).double()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    out, expected = compiled(x), model(x)
    torch.testing.assert_close(out, expected)
    parameters = list(model.parameters())
    for one, other in zip(
        *(torch.autograd.grad(y.square().sum(), parameters) for y in (out, expected)), strict=True
    ):
        torch.testing.assert_close(one, other)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("module", "options"),
    [(t5, {"num_buckets": 8, "max_distance": 20}), (kerple, {"kind": "power"})],
)
def test_biases_by_offset_are_those_by_pair(module, options, monkeypatch):
    name = module.__name__.rpartition(".")[2]
    model, x = layer({"name": name, **options}), torch.randn(2, TOKENS, 32).double()
    found = step(model, x)
    monkeypatch.setattr(module, "has_bias_of_offsets", lambda call: False)
    for one, other in zip(found, step(model, x), strict=True):
        torch.testing.assert_close(one, other)


def test_second_derivatives_are_those_of_the_definition():
    model, x = layer("kerple"), torch.randn(2, TOKENS, 32).double().requires_grad_()
    found = []
    for backend in ("auto", "reference"):
        model.layer.backend = backend
        (slope,) = torch.autograd.grad((x + model(x)).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), x)[0])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["dape", "stickbreaking", "fire", "grape_ap"])
def test_gradients_are_those_of_the_parameters_that_were_called_with(name):
    model, x = layer(*LISTS[name]), torch.randn(2, TOKENS, 32).double()
    given = {
        key: (value.detach() + 0.1).requires_grad_() for key, value in model.named_parameters()
    }
    found = []
    for backend in ("auto", "reference"):
        model.layer.backend = backend
        out = torch.func.functional_call(model, given, x)
        found.append(torch.autograd.grad(out.square().sum(), list(given.values())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("name", "module", "part"),
    [("cope", chunking, "apply_weights"), ("kerple", biased_softmax, "add_gradients")],
)
def test_a_pass_that_failed_leaves_nothing_to_the_next(name, module, part, monkeypatch):
    model, x = layer(name), torch.randn(2, TOKENS, 32).double().requires_grad_()
    loss, calls, compute = model(x).square().sum(), [], getattr(module, part)

    def failing(*args):
        calls.append(args)
        if len(calls) == 2:
            raise MemoryError
        return compute(*args)

    monkeypatch.setattr(module, part, failing)
    with pytest.raises(MemoryError):
        torch.autograd.grad(loss, x, retain_graph=True)
    expected = torch.autograd.grad(model(x).square().sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected)
