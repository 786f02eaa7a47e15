"""The causal language model: what a token may depend on, places, memory, weights as published."""

import pytest
import torch
from language import SAMPLES, decoder, give_mixer, links, text

import zoo
from zoo.attention.coordinates import PositionAugmentation
from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.attention.layer import Context
from zoo.errors import OptionError
from zoo.models.decoder import Decoder
from zoo.models.transformer import BlockOptions

ENCODINGS = ["none", "rope", "learned", "sinusoidal", "comrope_ld"]
each = pytest.mark.parametrize("name", ENCODINGS)


@each
def test_future_tokens_change_nothing(name):
    model, inputs = decoder(name), text()
    other = inputs.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 11
    torch.testing.assert_close(model(other)[:, :7], model(inputs)[:, :7])
    assert (model(other) - model(inputs))[:, 7:].abs().max() > 1e-2


@each
def test_packed_documents_are_the_documents_alone(name):
    model, inputs = decoder(name), text(1)
    packed = model(inputs, torch.tensor([[0] * 5 + [1] * 7]))
    alone = torch.cat([model(inputs[:, :5]), model(inputs[:, 5:])], dim=1)
    torch.testing.assert_close(packed, alone)
    assert (model(inputs) - alone).abs().max() > 1e-2


def test_tables_of_all_layers_made_at_once_change_nothing():
    model, inputs = decoder("rope_mixed"), text()
    layers = model.encoding["rope_mixed"]
    assert layers[1].siblings == tuple(layers)
    with torch.no_grad():
        for layer in layers:
            layer.frequencies += torch.randn_like(layer.frequencies)
        at_once = model(inputs)
        tokens = model.chains[0].embed(model.tokens(inputs))
        assert set(tokens.shared_tables) == {layer.layer_name for layer in layers}
    # with gradients each layer makes its own
    assert torch.equal(model(inputs), at_once)


@pytest.mark.parametrize("name", ["liere", "rope", "rope_mixed"])
def test_a_block_returns_the_tables_of_all_layers_alone(name):
    model = decoder(name)
    tokens = model.chains[0].embed(model.tokens(text()))
    found = model.blocks[0](tokens, model.chains[0], Context())
    assert found.shared_tables is tokens.shared_tables


@each
@pytest.mark.parametrize(("left", "right"), [(4, 0), (0, 4), (3, 1)])
def test_padding_changes_nothing(name, left, right):
    model, inputs = decoder(name), text(1, 8)
    padded = torch.cat([text(1, left), inputs, text(1, right)], dim=1)
    documents = torch.tensor([[-1] * left + [0] * 8 + [-1] * right])
    torch.testing.assert_close(model(padded, documents)[:, left : left + 8], model(inputs))


@each
def test_decoding_step_by_step_is_one_pass(name):
    model, inputs, cache = decoder(name), text(), KeyValueCache()
    parts = [model(part, context=cache) for part in inputs.split([3, 1, 1, 4, 3], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(inputs))


CAUSAL = [
    ["alibi", "dape"] if name == "dape" else [name]
    for name in zoo.encoding_names()
    if 1 in zoo.encoding_class(name).axes
]


@torch.no_grad()
@pytest.mark.parametrize("names", CAUSAL, ids="+".join)
def test_beams_go_on_from_other_rows(names):
    model, inputs, cache = decoder(*names).double(), text(3, 9), KeyValueCache()
    order, later = torch.tensor([1, 1, 2, 0]), text(4, 3)
    for part in inputs.split([6, 3], dim=1):
        model(part, context=cache)
    cache.reorder(order)
    found = [model(part, context=cache) for part in later.split(1, dim=1)]
    whole = model(torch.cat([inputs[order], later], dim=1))
    torch.testing.assert_close(torch.cat(found, dim=1), whole[:, 9:])


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [give_mixer("linear"), {"window": 4}, {"block": BlockOptions(token_shift=True)}],
    ids=" ".join,
)
def test_beams_reorder_all_that_is_remembered(options):
    model, inputs, later, cache = (
        decoder("rope", **options),
        text(3, 9),
        text(3, 3),
        KeyValueCache(),
    )
    model(inputs, context=cache)
    order = torch.tensor([2, 0, 0])
    cache.reorder(order)
    whole = model(torch.cat([inputs[order], later], dim=1))
    torch.testing.assert_close(model(later, context=cache), whole[:, 9:], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_memory_is_reordered_for_beams():
    model, inputs, later = decoder("rope"), text(3, 9), text(3, 3)
    order, first, second = torch.tensor([2, 0, 0]), SegmentMemory(4), SegmentMemory(4)
    model(inputs, context=first)
    model(inputs[order], context=second)
    first.reorder(order)
    torch.testing.assert_close(model(later, context=first), model(later, context=second))


def test_the_last_logits_are_those_of_all():
    model, inputs = decoder("rope"), text()
    assert model(inputs, last=1).shape == (2, 1, 11)
    torch.testing.assert_close(model(inputs, last=3), model(inputs)[:, -3:])


@each
def test_memory_of_full_length_is_one_pass(name):
    model, inputs, memory = decoder(name), text(), SegmentMemory(12)
    parts = [model(part, context=memory) for part in inputs.split(4, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(inputs))


def test_left_padded_prompts_are_continued_with_their_places():
    model, inputs, cache = decoder("rope"), text(1, 8), KeyValueCache()
    padded = torch.cat([text(1, 2), inputs[:, :6]], dim=1)
    model(padded, torch.tensor([[-1] * 2 + [0] * 6]), context=cache)
    later = model(inputs[:, 6:], torch.zeros(1, 2, dtype=torch.long), torch.tensor([6, 7]), cache)
    torch.testing.assert_close(later, model(inputs)[:, 6:])


def test_documents_after_a_context_need_their_places():
    model, cache = decoder("rope"), KeyValueCache()
    model(text(), context=cache)
    with pytest.raises(OptionError, match="need positions"):
        model(text(), torch.zeros(2, 12, dtype=torch.long), context=cache)


def test_a_place_by_the_final_length_is_refused():
    with pytest.raises(
        OptionError, match=r"comrope_ld has fraction coordinates, .* add coordinates: index"
    ) as found:
        decoder(encoding=links("comrope_ld"))
    assert found.value.key == "encoding"


def test_a_tied_table_is_read_and_predicted_with():
    tied, untied = decoder("rope"), decoder("rope", tie_embeddings=False)
    count = lambda model: sum(p.numel() for p in model.parameters())  # noqa: E731
    assert count(untied) - count(tied) == 11 * 16
    x = torch.randn(1, 3, 16)
    torch.testing.assert_close(tied.logits(x), x @ tied.embed_tokens.weight.T)
    torch.testing.assert_close(untied.logits(x), x @ untied.lm_head.weight.T)


def test_scaled_embeddings_are_larger_by_the_root_of_dim():
    model = decoder("none", scale_embeddings=True)
    inputs = text()
    torch.testing.assert_close(model.tokens(inputs).x, model.embed_tokens.weight[inputs] * 4)


def test_weights_start_as_published():
    model = Decoder(
        SAMPLES, dim=256, depth=8, heads=4, encoding=links("rope"), block=BlockOptions(mlp="swiglu")
    )
    block = model.blocks[3]
    for inner in (block.attn.q_proj, block.attn.v_proj, block.mlp.up_proj, block.mlp.gate_proj):
        assert inner.weight.std().item() == pytest.approx(0.02, rel=0.02)
    for end in (block.attn.o_proj, block.mlp.down_proj):
        assert end.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))
    assert model.embed_tokens.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_encodings_keep_the_weights_that_they_start_from():
    torch.manual_seed(1)
    model = Decoder(SAMPLES, dim=16, depth=1, heads=2, encoding=links("learned"))
    table = model.encoding["learned"].table.clone()
    from zoo.models.embedding import init_weights

    init_weights(model)
    assert torch.equal(model.encoding["learned"].table, table)


def test_jitter_moves_places_in_training_only():
    model = decoder("rope", position_augmentation=PositionAugmentation(jitter=1.0))
    assert torch.equal(model.tokens(text()).index[0, :, 0], torch.arange(12.0))
    moved = model.train().tokens(text())
    assert 0.1 < (moved.index[0, :, 0] - torch.arange(12)).abs().max() <= 0.5
    assert moved.ordered


def test_a_text_longer_than_a_learned_table_is_refused():
    with pytest.raises(OptionError, match=r"past the .*table of 12"):
        decoder("learned")(text(1, 13))
    assert decoder("rope")(text(1, 40)).shape == (1, 40, 11)


def test_the_whole_model_is_captured_by_the_compiler():
    model, inputs = decoder("rope"), text()
    documents = torch.tensor([[0] * 5 + [1] * 7, [-1] * 2 + [0] * 10])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(inputs, documents), model(inputs, documents), atol=1e-5, rtol=1e-4
    )


def test_heads_may_have_any_width():
    model, cache = decoder("rope", head_dim=6, kv_heads=1), KeyValueCache()
    layer = model.blocks[0].attn
    assert layer.q_proj.weight.shape == (12, 16)
    assert layer.k_proj.weight.shape == (6, 16)
    assert layer.o_proj.weight.shape == (16, 12)
    inputs = text()
    parts = [model(part, context=cache) for part in inputs.split(3, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(inputs))


def test_logits_are_bounded_by_their_soft_cap():
    torch.manual_seed(0)
    plain = decoder("rope")
    torch.manual_seed(0)
    capped = decoder("rope", logit_softcap=0.5)
    inputs = text()
    right = 0.5 * torch.tanh(plain(inputs) / 0.5)
    torch.testing.assert_close(capped(inputs), right)


def test_queries_of_all_heads_are_normed_together():
    layer = decoder("rope", block=BlockOptions(qk_norm=True, qk_norm_joint=True)).blocks[0].attn
    heads = torch.randn(2, 2, 5, 8)
    flat = heads.transpose(1, 2).flatten(2)
    right = flat * flat.square().mean(-1, keepdim=True).add(1e-6).rsqrt() * layer.q_norm.weight
    torch.testing.assert_close(layer.q_norm(heads).transpose(1, 2).flatten(2), right)
    with pytest.raises(OptionError, match="set qk_norm"):
        BlockOptions(qk_norm_joint=True)
