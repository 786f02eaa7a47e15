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
# entries that no option of rope stands for: what the module rotates by is measured
MEASURED = {
    "finetuned": {"rope_type": "linear", "factor": 2.0, "finetuned": True},
    "mrope_section": {"mrope_section": [4, 4, 8]},
}
UNKNOWN = {"alpha": {"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0}}


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


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["rope", "own"])
@pytest.mark.parametrize("name", [*MEASURED, "changed in the module"])
def test_frequencies_without_an_option_are_measured(name, encoding):
    model = build(MEASURED.get(name, {}))
    if name not in MEASURED:
        model.model.rotary_emb.inv_freq.mul_(0.9)
    right = model(make_ids()).logits
    report = zoo.equip(model, encoding)
    assert "the model's own frequencies" in str(report)
    torch.testing.assert_close(model(make_ids()).logits, right, atol=2e-5, rtol=0)


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


# families whose published models have rules


FAMILIES = {
    "Phi3": {
        "head_dim": 16,  # of the width, not of the configuration
        "hidden_size": 64,
        "original_max_position_embeddings": 32,
        "partial_rotary_factor": 0.75,
        "rope_parameters": {
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.3, 1.5, 2.0, 3.0],
            "long_factor": [1.0, 1.5, 3.0, 6.0, 12.0, 20.0],
        },
    },
    "Olmo3": {
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {**YARN, "attention_factor": 1.2, "beta_fast": 8.0},
    },
    "SmolLM3": {"no_rope_layers": [1, 0], "rope_parameters": {**YARN, "rope_theta": 500.0}},
}


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "length"), [("Phi3", None), ("Phi3", 90), ("Olmo3", None), ("SmolLM3", None)]
)
def test_a_family_with_rules_computes_what_it_did(name, length):
    """Logits within and past the original length, greedy answers, padding on the left; and back."""
    options = {**SIZES, "bos_token_id": 1, "eos_token_id": None, **FAMILIES[name]}
    if name == "Phi3":
        del options["head_dim"]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    # A text whose frequencies follow its length has this one.
    texts = {("Phi3", None): (30,), ("Phi3", 90): (90,)}.get((name, length), (30, 90))
    start = 60 if length else 12
    new = min(texts[-1] - start, 50)

    def compute():
        logits = [model(make_ids(count)).logits for count in texts]
        if length is None:
            ids = make_ids(start)
            mask = torch.nn.functional.pad(torch.ones_like(ids), (5, 0))
            padded = torch.nn.functional.pad(ids, (5, 0))
            logits.append(model(padded, attention_mask=mask).logits[:, 5:])
            answers = model.generate(ids, max_new_tokens=new, do_sample=False)
            return logits, answers
        return logits, None

    right, answers = compute()
    zoo.equip(model, "rope", length=length)
    found, again = compute()
    torch.testing.assert_close(found, right, atol=1e-5, rtol=0)
    assert answers is None or torch.equal(again, answers)
    if name == "Phi3":
        with pytest.raises(OptionError, match="is past length"):
            model(make_ids(texts[-1] + 3))

    zoo.unequip(model)
    assert all(torch.equal(*pair) for pair in zip(compute()[0], right, strict=True))


@torch.no_grad()
def test_a_cache_of_a_long_text_is_that_of_one_pass():
    """transformers has short frequencies in the keys of a prompt; here they are long from the start."""
    torch.manual_seed(0)
    options = {**SIZES, **FAMILIES["Phi3"]}
    del options["head_dim"]
    model = transformers.Phi3ForCausalLM(transformers.Phi3Config(**options)).eval()
    zoo.equip(model, "rope", length=60)
    ids = make_ids(60)
    first = model(ids[:, :20], use_cache=True)
    rest = [first.logits]
    for token in ids[:, 20:].split(8, dim=1):
        rest.append(model(token, past_key_values=first.past_key_values).logits)
    torch.testing.assert_close(torch.cat(rest, 1), model(ids).logits, atol=1e-5, rtol=0)
