"""The rotation of a model is read from its module, and taken over or refused by name."""

import warnings

import pytest
import torch

transformers = pytest.importorskip("transformers")

import zoo  # noqa: E402
from zoo.errors import OptionError  # noqa: E402

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "pad_token_id": 0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
KNOWN = {
    "plain": {},
    "another base": {"rope_theta": 500.0},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "attention_factor": {**YARN, "attention_factor": 1.0},
    "mscale": {**YARN, "mscale": 2.0, "mscale_all_dim": 1.0},
    "beta_fast": {**YARN, "beta_fast": 4.0, "beta_slow": 0.5},
    "truncate": {**YARN, "truncate": False},
    "high_freq_factor": {**LLAMA3, "low_freq_factor": 0.5, "high_freq_factor": 8.0},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "a factor that the code of Llama ignores": {"partial_rotary_factor": 0.5},
}
DIVISORS = {
    "short_factor": [1.0 + 0.1 * t for t in range(16)],
    "long_factor": [1.0 + t for t in range(16)],
}
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 32, **DIVISORS}
FIXED = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": LONGROPE,
    "longrope with a factor": {**LONGROPE, "factor": 8.0},
    "longrope with an attention_factor": {**LONGROPE, "attention_factor": 1.5},
}
UNKNOWN = {
    "finetuned": {"rope_type": "linear", "factor": 2.0, "finetuned": True},
    "alpha": {"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0},
    "mrope_section": {"mrope_section": [4, 4, 8]},
}


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def build(parameters):
    torch.manual_seed(0)
    parameters = {"rope_theta": 10000.0, "rope_type": "default", **parameters}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, rope_parameters=parameters)
    ).eval()


def make_ids(length=90):
    return torch.randint(3, 97, (1, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("name", KNOWN)
def test_a_known_rotation_is_taken_over(name):
    model = build(KNOWN[name])
    right = model(make_ids()).logits
    zoo.equip(model, "rope")
    torch.testing.assert_close(model(make_ids()).logits, right, atol=2e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", UNKNOWN)
def test_another_rotation_is_refused_for_plain_rope_only(name):
    model = build(UNKNOWN[name])
    right = model(make_ids()).logits
    with pytest.raises(OptionError, match=f"{name}.*give rope a base"):
        zoo.equip(model, "rope")
    assert torch.equal(model(make_ids()).logits, right)
    for encoding in ("alibi", {"name": "rope", "base": 500.0}):
        zoo.equip(model, encoding)
        assert (model(make_ids()).logits - right).abs().max() > 1e-3
        zoo.unequip(model)
    assert torch.equal(model(make_ids()).logits, right)


def test_frequencies_that_were_changed_in_the_module_are_refused():
    model = build({})
    model.model.rotary_emb.inv_freq.mul_(0.9)
    with pytest.raises(OptionError, match="rope does not have"):
        zoo.equip(model, "rope")


@torch.no_grad()
@pytest.mark.parametrize("name", FIXED)
def test_a_rotation_that_follows_the_length_is_fixed_for_one(name):
    """Within the original length without a word, past it for the length that is said."""
    model, original = build(FIXED[name]), 128 if name == "dynamic" else 32
    short, long = make_ids(original - 2), make_ids(160)
    right, longer = model(short).logits, model(long).logits
    own = build(FIXED[name]).model.rotary_emb.inv_freq

    zoo.equip(model, "rope")
    torch.testing.assert_close(model(short).logits, right, atol=1e-5, rtol=0)
    with pytest.raises(OptionError, match=f"past length {original}.*set scaling.length"):
        model(long)
    with pytest.raises(OptionError, match=f"position {original} is past length {original}"):
        model.generate(short, max_new_tokens=4, do_sample=False)
    zoo.unequip(model)

    # The comparison of the last equipment changed nothing in the model.
    report = zoo.equip(model, "rope", length=160)
    assert "length=160" in str(report).replace("'", "").replace(": ", "=")
    torch.testing.assert_close(model(long).logits, longer, atol=1e-5, rtol=0)
    zoo.unequip(model)
    assert torch.equal(model(short).logits, right)
    assert torch.equal(model(long).logits, longer)
    assert torch.equal(model(short).logits, right)
    assert torch.equal(model.model.rotary_emb.inv_freq, own)
