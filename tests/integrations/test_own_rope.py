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
    "a factor that the code of Llama ignores": {"partial_rotary_factor": 0.5},
}
UNKNOWN = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "beta_fast": {**YARN, "beta_fast": 2.0},
    "truncate": {**YARN, "truncate": False},
    "high_freq_factor": {**LLAMA3, "high_freq_factor": 8.0},
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


def make_ids():
    return torch.randint(3, 97, (1, 90), generator=torch.Generator().manual_seed(1))


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
