"""Mixers as layers: each is its loop over tokens, in one pass, in parts, packed and padded."""

from __future__ import annotations

import functools
from math import log

import pytest
import torch
from layers import CASES, TEMPLATE, make_lively, make_states, near, run

from zoo import registry
from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.errors import OptionError
from zoo.mixers.common import delta_rule
from zoo.mixers.common.convolution import CausalConvolution

parametrized = pytest.mark.parametrize("case", CASES)
ONE = ((0,) * 150,)
PACKED = ((4,) * 70 + (2,) * 3 + (9,) * 57, (1,) * 130)
ROW = (-1,) * 5 + (0,) * 3 + (-1,) * 4 + (0,) * 6 + (-1,) + (1,) * 2 + (-1,) + (1,) * 9 + (-1,) * 9
PADDED = (ROW, (3,) * 40, (-1,) * 16 + (7,) * 24)


def test_every_mixer_has_a_loop():
    assert {name for name, _, _ in CASES.values()} == {*registry.names("mixers"), TEMPLATE}


@functools.cache
def compute_loop(case, documents):
    """Return the outputs of the loop for documents of states, 0 for padding.

    Args:
        case: Name of the mixer.
        documents: Numbers of the documents of each row.
    """
    weights, x = dict(make_lively(case).named_parameters()), make_states(*shape(documents))
    out = torch.zeros_like(x)
    for row, numbers in enumerate(map(torch.tensor, documents)):
        for number in {*numbers.tolist()} - {-1}:
            own = numbers == number
            out[row, own] = CASES[case][2](x[row, own], weights)
    return out


def shape(documents):
    return len(documents), len(documents[0])


def run_parts(case, documents, size, fill=None):
    """Return the outputs of a mixer with a cache in parts of `size` tokens, and the cache."""
    mixer, cache, x = make_lively(case), KeyValueCache(), make_states(*shape(documents))
    numbers = torch.tensor(documents)
    if fill is not None:
        x = x.masked_fill((numbers < 0)[..., None], fill)
    pairs = zip(x.split(size, 1), numbers.split(size, 1), strict=True)
    return torch.cat([run(mixer, part, own, cache) for part, own in pairs], 1), cache


@parametrized
@torch.no_grad()
def test_one_pass_is_the_loop(case):
    mixer, x = make_lively(case), make_states(1)
    for count in (1, 3, 17, 64, 65, 150):
        near(run(mixer, x[:, :count]), compute_loop(case, ONE)[:, :count])


@parametrized
@torch.no_grad()
@pytest.mark.parametrize("size", [1, 7, 8, 70])
def test_parts_with_a_cache_are_the_loop(case, size):
    mixer, x, cache = make_lively(case), make_states(1), KeyValueCache()
    parts = [run(mixer, part, context=cache) for part in x.split(size, 1)]
    near(torch.cat(parts, 1), compute_loop(case, ONE))
    assert cache.seen == 150


def check_packing(case, size):
    near(run_parts(case, PACKED, size)[0], compute_loop(case, PACKED))


@parametrized
@torch.no_grad()
@pytest.mark.parametrize("size", [130, 1, 7, 8, 71])
def test_packed_documents_are_computed_alone(case, size):
    check_packing(case, size)


@parametrized
@torch.no_grad()
@pytest.mark.parametrize("size", [40, 1, 7, 8])
def test_padding_anywhere_changes_nothing(case, size):
    """Padding stands before, within, between and after documents, and holds no finite number."""
    out, _ = run_parts(case, PADDED, size, fill=torch.nan)
    assert out.isfinite().all()
    near(out * (torch.tensor(PADDED) >= 0)[..., None], compute_loop(case, PADDED))


@parametrized
@torch.no_grad()
def test_a_copy_of_a_cache_goes_on_by_itself(case):
    mixer, x, cache = make_lively(case), make_states(count=20), KeyValueCache()
    run(mixer, x[:, :9], context=cache)
    copy = cache.copy()
    run(mixer, -x[:, 9:14], context=cache)
    near(run(mixer, x[:, 9:], context=copy), run(mixer, x)[:, 9:])


@parametrized
@torch.no_grad()
def test_a_cache_is_reordered_and_a_memory_of_one_row_continues_in_all(case):
    mixer, x = make_lively(case), make_states(rows=3, count=12)
    cache, single = KeyValueCache(), KeyValueCache()
    run(mixer, x[:, :5], context=cache)
    cache.reorder(torch.tensor([2, 0]))
    near(run(mixer, x[[2, 0], 5:], context=cache), run(mixer, x)[[2, 0], 5:])
    with pytest.raises(OptionError, match="rows"):
        run(mixer, x, context=cache)

    run(mixer, x[:1, :5], context=single)
    joined = torch.cat([x[:1, :5].expand(3, -1, -1), x[:, 5:]], 1)
    near(run(mixer, x[:, 5:], context=single), run(mixer, joined)[:, 5:])


@parametrized
@torch.no_grad()
def test_a_cache_does_not_grow(case):
    mixer, x, cache = make_lively(case), make_states(count=40), KeyValueCache()
    sizes = []
    for part in x.split(10, 1):
        run(mixer, part, context=cache)
        sizes.append(cache.measure()[0])
    assert len(set(sizes)) == 1
    assert sizes[0].tokens == 0
    assert sizes[0].bytes > 0 or CASES[case][1].get("width") == 1


@parametrized
@torch.no_grad()
def test_a_segment_memory_gives_the_state_of_its_tokens(case):
    mixer, x, memory = make_lively(case), make_states(count=30), SegmentMemory(8)
    for start in range(0, 30, 10):
        out = run(mixer, x[:, start : start + 10], context=memory)
        first = max(start - 8, 0)
        near(out, run(mixer, x[:, first : start + 10])[:, start - first :])
    assert memory.seen == 30


@parametrized
def test_gradients_are_those_of_token_by_token(case):
    """The chunked form is differentiated; a loop over single tokens with a cache is the other."""
    mixer, x = make_lively(case), make_states(count=20).requires_grad_()
    documents = torch.tensor([[0] * 9 + [1] * 11])
    target = make_states(count=20, seed=5)

    def differentiate(out):
        loss = (out * target).sum()
        return torch.autograd.grad(loss, [x, *mixer.parameters()])

    whole = differentiate(run(mixer, x, documents))
    cache = KeyValueCache()
    pairs = zip(x.split(1, 1), documents.split(1, 1), strict=True)
    steps = [run(mixer, part, numbers, cache) for part, numbers in pairs]
    for one, other in zip(whole, differentiate(torch.cat(steps, 1)), strict=True):
        near(one, other)
        assert one.abs().max() > 0


@parametrized
@torch.no_grad()
def test_fast_decays_stay_finite_in_float32(case):
    """The inverse of the decay over a chunk overflows a float32; no output does."""
    mixer, x = make_lively(case), make_states(count=128)
    for name, parameter in mixer.named_parameters():
        if name == "a_log":
            parameter.fill_(log(16))
    expected = run(mixer, x)
    error = (run(mixer.float(), x.float()) - expected).abs().max()
    assert error <= 1e-3 * expected.abs().max()


@torch.no_grad()
def test_a_state_that_survives_its_document_is_caught(monkeypatch):
    """Planted faults: the state, or the convolution, goes on in the next document."""
    scan = delta_rule.scan_chunks
    monkeypatch.setattr(
        "zoo.mixers.gated_delta.scan_chunks", lambda inputs, _, state: scan(inputs, None, state)
    )
    with pytest.raises(AssertionError):
        check_packing("gated_delta", 130)
    monkeypatch.undo()

    forward = CausalConvolution.forward

    def convolve_on(self, x, stream, past):
        stream = type(stream)(stream.x, None, None, stream.document, None)
        return forward(self, x, stream, past)

    monkeypatch.setattr(CausalConvolution, "forward", convolve_on)
    for case in ("gated_delta", "short_conv"):
        with pytest.raises(AssertionError):
            check_packing(case, 130)
