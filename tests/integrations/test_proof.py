"""zoo compares each attention of an equipped model with the model's own, and refuses a difference."""

import warnings
from contextlib import nullcontext

import pytest
import torch

transformers = pytest.importorskip("transformers")

import zoo  # noqa: E402
from zoo.errors import OptionError  # noqa: E402
from zoo.integrations.proof import measure_difference  # noqa: E402

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
IMAGES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def build(name="Llama", **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **options})
    kind = "LMHeadModel" if name in ("Bert", "GPT2") else "ForCausalLM"
    return getattr(transformers, f"{name}{kind}")(config).eval()


def make_ids():
    return torch.randint(3, 97, (1, 12), generator=torch.Generator().manual_seed(1))


def change_last(ids):
    ids = ids.clone()
    ids[:, -1] = 2
    return ids


def cap_scores(module, q, k, v, mask, scaling=None, dropout=0.0, **options):
    """An attention that caps its scores, which no encoding knows."""
    scores = torch.tanh(q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scaling)
    count = q.shape[2]
    scores = scores.masked_fill(~torch.ones(count, count).bool().tril(), float("-inf"))
    out = scores.softmax(-1) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    return out.transpose(1, 2), None


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["rope", "alibi"])
def test_an_attention_that_zoo_does_not_know_is_refused(encoding):
    transformers.AttentionInterface.register("capped", cap_scores)
    model = build(initializer_range=0.3)
    model.set_attn_implementation("capped")
    right = model(make_ids()).logits
    with pytest.raises(OptionError, match="attention of layer 0 would differ"):
        zoo.equip(model, encoding)
    assert torch.equal(model(make_ids()).logits, right)


@torch.no_grad()
def test_a_layer_that_rotates_otherwise_is_refused_by_its_number():
    model = build(initializer_range=0.3)
    attention = model.model.layers[1].self_attn
    original = attention.forward

    def rotate_twice(hidden_states, position_embeddings, **options):
        cos, sin = position_embeddings
        doubled = (cos**2 - sin**2, 2 * sin * cos)
        return original(hidden_states, position_embeddings=doubled, **options)

    attention.forward = rotate_twice
    with pytest.raises(OptionError, match=r"law rotation.*layers\.1.*other angles"):
        zoo.equip(model, "rope")


def test_a_model_keeps_its_mode_and_the_state_of_random_numbers():
    model = build().train()
    model.model.layers[0].eval()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    zoo.equip(model, "alibi")
    assert torch.equal(torch.rand(1), expected)
    assert model.training
    assert not model.model.layers[0].self_attn.training
    assert model.model.layers[1].self_attn.training


def test_single_tokens_may_differ_in_half_precision():
    own = torch.randn(1, 12, 32).bfloat16()
    found = own.clone()
    found[:, 3] *= 2
    assert measure_difference(own, found) == 0
    assert measure_difference(own.float(), found.float()) > 0.5
    assert measure_difference(own, own * 1.5) > 0.3
    assert not measure_difference(own, own * float("nan")) <= 1


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "change"), [("float32", 2e-4), ("bfloat16", 0.3)])
def test_a_scale_that_differs_by_more_than_rounding_is_refused(dtype, change):
    model = build(initializer_range=0.3).to(getattr(torch, dtype))
    zoo.equip(model, "own")
    zoo.unequip(model)

    def scale_otherwise(module, q, k, v, mask, scaling=None, **options):
        sdpa = transformers.AttentionInterface()["sdpa"]
        return sdpa(module, q, k, v, mask, scaling=scaling * (1 + change), **options)

    transformers.AttentionInterface.register("scaled", scale_otherwise)
    model.set_attn_implementation("scaled")
    with pytest.raises(OptionError, match=r"law one pass.*layer 0.*rounding alone by [\d.e-]+:"):
        zoo.equip(model, "own")


def ignore_window(module, q, k, v, mask, scaling=None, **options):
    """An attention that follows no window: in an encoder, and for tokens after those of a cache."""
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
    rows, columns = q.shape[2], k.shape[2]
    is_encoder = not getattr(module, "is_causal", True)
    if is_encoder or columns > rows:
        visible = torch.ones(rows, columns).bool().tril(columns - rows) | is_encoder
        padding = 0 if mask is None else mask.amax(2, keepdim=True)
        mask = padding + torch.zeros(rows, columns).masked_fill(~visible, -1e30)
    scores = q @ k.mT * scaling + mask
    return (scores.softmax(-1) @ v).transpose(1, 2), None


LONG_WINDOWS = {
    "Mistral": {"sliding_window": 64, "num_key_value_heads": 2},
    "Llama4": {
        "num_key_value_heads": 2,
        "attention_chunk_size": 64,
        "no_rope_layers": [1, 1, 0],
        "head_dim": 8,
        "num_local_experts": 2,
        "intermediate_size_mlp": 32,
    },
    "ModernBert": {"local_attention": 64, "cls_token_id": 1, "sep_token_id": 2},
}


@torch.no_grad()
@pytest.mark.parametrize("name", LONG_WINDOWS)
def test_a_window_longer_than_the_text_is_proved(name):
    transformers.AttentionInterface.register("endless", ignore_window)
    transformers.AttentionMaskInterface.register("endless", transformers.masking_utils.eager_mask)
    sizes = {**SIZES, "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2}
    kind = getattr(transformers, f"{name}{'Model' if name == 'ModernBert' else 'ForCausalLM'}")
    model = kind(kind.config_class(**{**sizes, **LONG_WINDOWS[name]})).eval()
    report = zoo.equip(model, "own")
    assert not [note for note in report.notes if "not proved" in note]
    zoo.unequip(model)
    model.set_attn_implementation("endless")
    law = "past the window" + ("" if name == "ModernBert" else ", with a cache")
    with pytest.raises(OptionError, match=f"law {law}: the attention of layer"):
        zoo.equip(model, "own")


@torch.no_grad()
def test_a_window_that_no_text_fills_is_in_the_report(monkeypatch):
    model = build("Mistral", **LONG_WINDOWS["Mistral"])
    assert not zoo.equip(model, "own").notes
    zoo.unequip(model)
    monkeypatch.setattr("zoo.integrations.proof.narrowed", lambda model, count: nullcontext())
    (note,) = zoo.equip(model, "own").notes
    assert note.endswith("no text of the proof is longer than the window of layers 0, 1 and 2")


@torch.no_grad()
def test_an_encoder_that_is_a_decoder_is_causal():
    model = build("Bert", is_decoder=True)
    report = str(zoo.equip(model, "fox"))  # needs a causal mask
    assert "fox" in report
    ids = make_ids()
    first = model(ids).logits[:, 0]
    assert torch.equal(model(change_last(ids)).logits[:, 0], first)
    step = model(ids[:, :8], use_cache=True)
    rest = model(ids[:, 8:], past_key_values=step.past_key_values, use_cache=True).logits
    torch.testing.assert_close(torch.cat([step.logits, rest], 1), model(ids).logits)


@torch.no_grad()
def test_a_decoder_without_a_causal_mask_stays_bidirectional():
    model = build(is_causal=False, initializer_range=0.3)
    ids = make_ids()
    right = model(ids).logits
    with pytest.raises(OptionError, match="fox needs a causal mask"):
        zoo.equip(model, "fox")
    zoo.equip(model, "rope")
    torch.testing.assert_close(model(ids).logits, right, atol=1e-5, rtol=0)
    with pytest.raises(OptionError, match="equipped with is_causal=False"):
        model(ids, is_causal=True)


def test_causality_that_masks_for_padding_do_not_follow_is_refused():
    with pytest.raises(OptionError, match=r"config\.is_causal"):
        zoo.equip(build("Bert", is_causal=True), "alibi")


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["rope_axial", "learned"])
def test_images_and_patches_may_have_two_sizes(encoding):
    config = transformers.ViTConfig(**IMAGES, image_size=(32, 48), patch_size=(8, 16))
    model = transformers.ViTModel(config).eval()
    zoo.equip(model, encoding)
    assert model.zoo_encoding.dims.length == (4, 3)
    pixels = torch.randn(1, 3, 32, 48)
    assert model(pixel_values=pixels).last_hidden_state.shape[1] == 13


@torch.no_grad()
@pytest.mark.parametrize("name", ["ModernBert", "EuroBert", "Llama"])
def test_the_own_rope_counts_masked_tokens_as_the_model_does(name):
    sizes = {**SIZES, "initializer_range": 0.2, "cls_token_id": 1, "sep_token_id": 2}
    sizes |= {"bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}Model")(config).eval()
    ids, mask = make_ids(), torch.ones(1, 12, dtype=torch.long)
    mask[0, [3, 4, 7]] = 0
    right = model(ids, attention_mask=mask).last_hidden_state
    zoo.equip(model, "rope")
    found = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found[mask > 0], right[mask > 0], atol=2e-5, rtol=0)
