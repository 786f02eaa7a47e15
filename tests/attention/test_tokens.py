"""What is known of tokens travels with them, and into what a layer remembers."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.attention.layer import Context, SelfAttention
from zoo.attention.tokens import Tokens

EXACT = 1e-10
D = 8


def tokens(first, count, batch=1, **masks):
    x = torch.randn(batch, count, D, dtype=torch.float64)
    return Tokens.at(x, torch.arange(first, first + count).double()[:, None], **masks)


# tokens


def test_coordinates_take_the_wider_dtype():
    pos = torch.zeros(3, 1)
    assert Tokens.at(torch.zeros(1, 3, D).double(), pos).pos.dtype == torch.float64
    assert Tokens.at(torch.zeros(1, 3, D).bfloat16(), pos.bfloat16()).pos.dtype == torch.float32
    assert Tokens.at(torch.zeros(1, 3, D), pos.long()).pos.dtype == torch.float32
    assert Tokens.at(torch.zeros(1, 3, D), pos.double()).pos.dtype == torch.float64


def test_shared_and_own_facts_have_a_batch():
    at = Tokens.at(
        torch.zeros(2, 3, D),
        torch.zeros(3, 1),
        torch.ones(3, dtype=torch.bool),
        torch.zeros(2, 3).long(),
    )
    assert at.pos.shape == (1, 3, 1)
    assert at.has_position.shape == (1, 3)
    assert at.document.shape == (2, 3)


def test_joined_tokens_stand_one_after_the_other():
    first, second = tokens(0, 3), tokens(3, 2)
    both = first.join(second)
    assert len(both) == 5
    assert torch.equal(both.x, torch.cat([first.x, second.x], 1))
    assert both.pos[0, :, 0].tolist() == [0, 1, 2, 3, 4]
    assert both.has_position is None
    assert both.document is None


def test_joining_widens_a_shared_batch():
    first, second = tokens(0, 3, batch=2), tokens(3, 2, batch=2)
    own = second.replace(pos=second.pos.repeat(2, 1, 1) + torch.tensor([0.0, 9.0])[:, None, None])
    both = first.join(own)
    assert both.index.shape == (1, 5, 1)
    assert both.pos[..., 0].tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 12, 13]]


def test_joining_fills_in_what_one_side_leaves_open():
    unplaced = tokens(
        0,
        2,
        batch=2,
        has_position=torch.tensor([False, True]),
        document=torch.tensor([[-1, 0], [0, 0]]),
    )
    both, turned = unplaced.join(tokens(2, 1, batch=2)), tokens(2, 1, batch=2).join(unplaced)
    assert both.has_position.tolist() == [[False, True, True]]
    assert both.document.tolist() == [[-1, 0, 0], [0, 0, 0]]
    assert turned.has_position.tolist() == [[True, False, True]]
    assert turned.document.tolist() == [[0, -1, 0], [0, 0, 0]]


def test_joined_tokens_have_the_extent_of_now():
    first, second = (
        tokens(at, 2).replace(grid_size=torch.tensor([[[size]]]))
        for at, size in ((0, 2.0), (2, 4.0))
    )
    assert first.join(second).grid_size.tolist() == [[[4.0]]]


def test_notes_travel_and_tables_do_not():
    first, second = (
        tokens(at, 2).with_per_token(gate=torch.full((1, 2, 1), float(at))) for at in (0, 2)
    )
    first = first.replace(shared_tables={"rope": (torch.zeros(1),)})
    both = first.join(second)
    assert both.per_token["gate"][0, :, 0].tolist() == [0, 0, 2, 2]
    assert not both.shared_tables
    assert both.last(3).per_token["gate"][0, :, 0].tolist() == [0, 2, 2]
    assert not first.last(1).shared_tables


def test_the_last_tokens_keep_their_facts():
    at = tokens(
        0,
        4,
        has_position=torch.tensor([False, True, True, True]),
        document=torch.tensor([0, 0, 1, 1]),
    )
    last = at.last(2)
    assert last.pos[0, :, 0].tolist() == [2, 3]
    assert last.has_position.tolist() == [[True, True]]
    assert last.document.tolist() == [[1, 1]]
    assert at.last(4) is at


# contexts

recorded_or_not = pytest.mark.parametrize(
    "recorded", [True, False]
)  # what is not is appended in place


def layer(encoding="rope", causal=True, index=0):
    dims = Dims(D, 2, layer=index, length=64)
    return SelfAttention(dims, causal=causal).double(), Chain.of(
        zoo.encoding(encoding, dims)
    ).double()


def run(attention, chain, at, context):
    return attention(chain.embed(at), chain, context)[0].x


def parts(at, *counts):
    begins = [sum(counts[:i]) for i in range(len(counts))]
    return [
        at.last(len(at) - begin) if i == len(counts) - 1 else _cut(at, begin, count)
        for i, (begin, count) in enumerate(zip(begins, counts, strict=True))
    ]


def _cut(at, begin, count):
    span = slice(begin, begin + count)
    masks = (None if m is None else m[:, span] for m in (at.has_position, at.document))
    return Tokens.at(at.x[:, span], at.pos[:, span], *masks)


def test_a_context_without_memory_returns_what_it_is_given():
    at, heads = tokens(0, 3), torch.zeros(1, 2, 3, 4)
    assert Context().extend_states(0, at) is at
    assert Context().extend(0, heads, heads, at) == (heads, heads, at)


def test_a_cache_grows_and_keeps_layers_apart():
    cache, at, heads = KeyValueCache(), tokens(0, 3), torch.randn(1, 2, 3, 4)
    cache.extend(0, heads, 2 * heads, at)
    k, v, keys = cache.extend(0, 3 * heads, heads, tokens(3, 3))
    assert torch.equal(k, torch.cat([heads, 3 * heads], 2))
    assert torch.equal(v, torch.cat([2 * heads, heads], 2))
    assert keys.pos[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert cache.extend(1, heads, heads, at)[0].shape == heads.shape


def test_a_cache_remembers_no_states():
    assert KeyValueCache().extend(
        0, torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), tokens(0, 3)
    )[2].x.shape == (1, 3, 0)


def test_a_cached_key_is_never_touched_again():
    attention, chain = layer()
    cache, steps = KeyValueCache(), parts(tokens(0, 6), 4, 1, 1)
    run(attention, chain, steps[0], cache)
    before = [one.rows.clone() for one in (cache._layers[0].k, cache._layers[0].v)]
    for step in steps[1:]:
        run(attention, chain, step, cache)
    assert torch.equal(cache._layers[0].k.rows[:, :, :4], before[0])
    assert torch.equal(cache._layers[0].v.rows[:, :, :4], before[1])


def test_keys_are_kept_as_they_settle_and_read_as_they_were():
    cache, at, heads = (
        KeyValueCache(),
        tokens(0, 2).with_per_token(spent=torch.ones(1, 2)),
        torch.randn(1, 2, 2, 4).half(),
    )

    def settle(k, tokens):
        return 10 * k.float(), tokens.with_per_token(spent=tokens.per_token["spent"][:, :0])

    k, _, keys = cache.extend(0, heads, heads, at, settle)
    assert torch.equal(k, heads)
    assert keys.per_token["spent"].shape == (1, 2)
    k, _, keys = cache.extend(
        0, heads, heads, tokens(2, 2).with_per_token(spent=torch.ones(1, 2)), settle
    )
    assert torch.equal(k, torch.cat([(10 * heads.float()).half(), heads], 2))
    assert keys.per_token["spent"].shape == (1, 2)
    assert cache._layers[0].k.rows.dtype == torch.float32


def test_a_note_may_cover_the_last_tokens_alone():
    at, part = (
        tokens(0, 4).with_per_token(short=torch.arange(2.0)[None]),
        tokens(4, 3).with_per_token(short=torch.arange(2.0, 5)[None]),
    )
    assert at.join(part).per_token["short"].tolist() == [[0, 1, 2, 3, 4]]
    assert at.join(part).last(3).per_token["short"].tolist() == [[2, 3, 4]]
    assert at.last(3).per_token["short"].tolist() == [[0, 1]]


@recorded_or_not
def test_a_left_padded_batch_decodes_as_its_samples_do(recorded):
    attention, chain = layer()
    padding = torch.tensor([[0] * 6, [-1, -1] + [0] * 4])
    at = tokens(0, 6, batch=2, document=padding)
    cache = KeyValueCache()
    with torch.set_grad_enabled(recorded):
        out = torch.cat([run(attention, chain, step, cache) for step in parts(at, 3, 1, 1, 1)], 1)
    alone = run(attention, chain, Tokens.at(at.x[1:, 2:], at.pos[0, 2:]), Context())
    torch.testing.assert_close(out[1:, 2:], alone, atol=EXACT, rtol=EXACT)
    torch.testing.assert_close(
        out[:1], run(attention, chain, _cut(at.replace(x=at.x[:1], document=None), 0, 6), Context())
    )


@recorded_or_not
def test_a_class_token_stays_unplaced_in_the_cache(recorded):
    attention, chain = layer()
    at = tokens(0, 5, has_position=torch.arange(5) > 0)
    cache = KeyValueCache()
    with torch.set_grad_enabled(recorded):
        out = torch.cat([run(attention, chain, step, cache) for step in parts(at, 2, 1, 2)], 1)
    torch.testing.assert_close(out, run(attention, chain, at, Context()), atol=EXACT, rtol=EXACT)


@recorded_or_not
def test_tokens_added_after_a_class_token_need_not_say_that_they_have_a_place(recorded):
    attention, chain = layer()
    at, cache = tokens(0, 5, has_position=torch.arange(5) > 0), KeyValueCache()
    first, second, third = parts(at, 2, 2, 1)
    with torch.set_grad_enabled(recorded):
        steps = [first, second.replace(has_position=None), third.replace(has_position=None)]
        out = torch.cat([run(attention, chain, step, cache) for step in steps], 1)
    torch.testing.assert_close(out, run(attention, chain, at, Context()), atol=EXACT, rtol=EXACT)


@torch.no_grad()
def test_facts_that_come_later_hold_of_later_tokens_alone():
    attention, chain = layer()
    at, cache = tokens(0, 6, batch=2), KeyValueCache()
    first, *steps = parts(at, 3, 1, 1, 1)
    own = torch.tensor([[0], [1]])
    out = [
        run(attention, chain, first, cache),
        *(run(attention, chain, s.replace(document=own), cache) for s in steps),
    ]
    document = torch.tensor([[0] * 6, [0] * 3 + [1] * 3])
    whole = run(attention, chain, at.replace(document=document), Context())
    torch.testing.assert_close(torch.cat(out, 1), whole, atol=EXACT, rtol=EXACT)


@torch.no_grad()
def test_a_copy_and_its_origin_go_on_apart():
    attention, chain = layer()
    at, other, cache = tokens(0, 6), tokens(0, 6), KeyValueCache()
    run(attention, chain, _cut(at, 0, 3), cache)
    run(attention, chain, _cut(at, 3, 1), cache)  # leaves room, which both have
    copied = cache.copy()
    run(attention, chain, _cut(at, 4, 1), cache)
    run(attention, chain, _cut(other, 4, 1), copied)
    out = run(attention, chain, _cut(at, 5, 1), cache)
    torch.testing.assert_close(
        out, run(attention, chain, at, Context())[:, 5:], atol=EXACT, rtol=EXACT
    )


def test_gradients_pass_a_cache_that_was_filled_without():
    attention, chain = layer()
    at, cache = tokens(0, 6), KeyValueCache()
    first, *steps = parts(at, 3, 1, 1, 1)
    with torch.no_grad():
        run(attention, chain, first, cache)
        run(attention, chain, steps[0], cache)
    out = torch.cat([run(attention, chain, step, cache) for step in steps[1:]], 1)
    with torch.no_grad():
        run(attention, chain, tokens(6, 1), cache)
    out.square().sum().backward()
    assert (attention.v_proj.weight.grad != 0).any()


def test_a_memory_forgets_beyond_its_length():
    memory = SegmentMemory(3)
    assert len(memory.extend_states(0, tokens(0, 2))) == 2
    assert memory.extend_states(0, tokens(2, 2)).pos[0, :, 0].tolist() == [0, 1, 2, 3]
    assert memory.extend_states(0, tokens(4, 2)).pos[0, :, 0].tolist() == [1, 2, 3, 4, 5]
    assert len(memory.extend_states(1, tokens(0, 2))) == 2


def test_a_memory_of_nothing_remembers_nothing():
    memory = SegmentMemory(0)
    memory.extend_states(0, tokens(0, 2))
    assert len(memory.extend_states(0, tokens(2, 2))) == 2


def test_a_window_of_memory_is_a_band():
    attention, chain = layer("none")
    at, memory = tokens(0, 6), SegmentMemory(2)
    out = [run(attention, chain, step, memory) for step in parts(at, 2, 2, 2)]
    for begin, own in ((2, out[1]), (4, out[2])):
        near = run(attention, chain, _cut(at, begin - 2, 4), Context())[:, 2:]
        torch.testing.assert_close(own, near, atol=EXACT, rtol=EXACT)


def test_no_gradient_reaches_what_is_remembered():
    attention, chain = layer()
    at, memory = tokens(0, 4), SegmentMemory(4)
    x = at.x.requires_grad_()
    first, second = parts(at.replace(x=x), 2, 2)
    run(attention, chain, first, memory)
    run(attention, chain, second, memory).square().sum().backward()
    assert (x.grad[:, :2] == 0).all()
    assert (x.grad[:, 2:] != 0).any()


@pytest.mark.parametrize("context", [KeyValueCache, lambda: SegmentMemory(8)])
def test_documents_stay_apart_in_memory(context):
    attention, chain = layer()
    at, remembered = tokens(0, 6, document=torch.tensor([0, 0, 0, 0, 1, 1])), context()
    out = [run(attention, chain, step, remembered) for step in parts(at, 4, 2)]
    alone = run(attention, chain, _cut(at, 4, 2), Context())
    torch.testing.assert_close(out[1], alone, atol=EXACT, rtol=EXACT)


def test_a_memory_goes_on_from_its_state():
    first, second = SegmentMemory(4), SegmentMemory(4)
    first.extend_states(0, tokens(0, 6).with_per_token(kept=torch.ones(1, 6)))
    second.load_state_dict(first.state_dict())
    later = tokens(6, 3).with_per_token(kept=torch.zeros(1, 3))
    one, other = first.extend_states(0, later), second.extend_states(0, later)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.per_token["kept"], other.per_token["kept"])
    assert first.seen == second.seen == 9
