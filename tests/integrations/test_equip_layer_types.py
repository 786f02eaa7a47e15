"""`zoo.equip` of families whose layers differ: windows, chunks, bases, soft caps, sinks, no positions.

With its own positions each computes what transformers does; with others, decoding equals one pass,
and padding changes nothing.
"""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
from parts import draw_part, run_parts
from torch.nn.functional import pad

transformers = pytest.importorskip("transformers")

import zoo  # noqa: E402
from zoo.diagnosis.diagnose import name_layer_types  # noqa: E402
from zoo.errors import OptionError  # noqa: E402

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWS = {"sliding_window": 7, "layer_types": KINDS}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 1}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
MODELS = {
    "Gemma2": {
        **WINDOWS,
        "query_pre_attn_scalar": 5,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "Gemma3": {
        **WINDOWS,
        "query_pre_attn_scalar": 5,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
        },
    },
    "GptOss": {
        **WINDOWS,
        **EXPERTS,
        "rope_parameters": {**YARN, "rope_theta": 500.0, "truncate": False},
    },
    "Llama4": {
        **EXPERTS,
        "intermediate_size_mlp": 32,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 7,
        "no_rope_layers": [1, 0, 1],
        "floor_scale": 5,
        "attn_scale": 0.5,
    },
    "Olmo3": {**WINDOWS, "rope_parameters": {**YARN, "rope_theta": 500.0}},
    "Cohere2": WINDOWS,
    "Phi3": {
        "sliding_window": 7,
        "hidden_size": 48,
        "original_max_position_embeddings": 32,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 500.0,
            "short_factor": [1.0, 1.1, 1.3, 1.5, 2.0, 3.0],
            "long_factor": [1.0, 1.5, 3.0, 6.0, 12.0, 20.0],
        },
    },
}
# texts to read, a prompt to continue, and the length that a rotation is fixed for: that of Phi-3
# follows the length of a text in transformers, with other frequencies past 32 tokens
RUNS = {"Phi3": [([20], None, 20), ([100], 40, 100)]}
families = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def read_class(name):
    return getattr(transformers, f"{name}ForCausalLM")


def make_model(name, **options):
    torch.manual_seed(0)
    config = read_class(name).config_class(**{**SIZES, **MODELS[name], **options})
    config._attn_implementation = "eager"
    model = read_class(name)(config).eval()
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1 or "sinks" in key:
            parameter.data.normal_(std=0.1)
    return model


def make_ids(count):
    return torch.randint(3, 60, (1, count), generator=torch.Generator().manual_seed(1))


def pad_left(model, ids, count=5):
    """Return the logits of a text after padding, without those of the padding."""
    mask = pad(torch.ones_like(ids), (count, 0))
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    out = model(pad(ids, (count, 0)), attention_mask=mask, position_ids=positions)
    return out.logits[:, count:]


def decode(model, ids, prompt=9):
    cache, parts = None, []
    for part in ids.split((prompt, 3, *(1,) * (ids.shape[1] - prompt - 3)), 1):
        out = model(part, past_key_values=cache, use_cache=True)
        cache, parts = out.past_key_values, [*parts, out.logits]
    return torch.cat(parts, 1)


@torch.no_grad()
@families
def test_a_model_with_its_own_positions_computes_what_it_did(name):
    """Within and past windows, chunks and original lengths, padded, and decoded from a cache."""
    model = make_model(name)
    for texts, prompt, length in RUNS.get(name, [([20, 100], 12, None)]):

        def compute(texts=texts, prompt=prompt):
            found = [model(make_ids(count)).logits for count in texts]
            found.append(pad_left(model, make_ids(texts[0])))
            if prompt is None:
                return found
            return [*found, model.generate(make_ids(prompt), max_new_tokens=50, do_sample=False)]

        right = compute()
        zoo.equip(model, "rope", length=length)
        torch.testing.assert_close(compute(), right, atol=1e-5, rtol=0)
        zoo.unequip(model)
        assert all(torch.equal(*pair) for pair in zip(compute(), right, strict=True))


@torch.no_grad()
@families
@pytest.mark.parametrize("layers", ["all", "full", "windowed"])
@run_parts(3)
def test_other_positions_in_some_layers(name, layers, step):
    model, ids = make_model(name), make_ids(15)
    before = model(ids).logits
    if (name, layers) == ("Phi3", "full"):
        with pytest.raises(OptionError, match="no full layers"):
            zoo.equip(model, "fox", layers=layers)
        return
    encodings = ("fox", "alibi", {"name": "rope", "base": 50.0})
    index = len(name) + ("all", "full", "windowed").index(layers)
    for encoding in draw_part(encodings, step, index):
        zoo.equip(model, encoding, layers=layers)
        whole = model(ids).logits
        assert (whole - before).abs().max() > 1e-3
        torch.testing.assert_close(decode(model, ids), whole, atol=1e-5, rtol=0)
        torch.testing.assert_close(pad_left(model, ids), whole, atol=1e-5, rtol=0)
        zoo.unequip(model)
    assert torch.equal(model(ids).logits, before)


@torch.no_grad()
@pytest.mark.parametrize("name", ["Gemma2", "GptOss", "Llama4"])
def test_caps_sinks_and_temperature_are_those_of_the_model(name):
    """The same rotation with its options written out: zoo computes everything about scores."""
    options = {"rope_theta": 50.0, "rope_type": "default"}
    model, ids = make_model(name, rope_parameters=options), make_ids(40)
    right = model(ids, output_attentions=True)
    zoo.equip(model, {"name": "rope", "base": 50.0})
    found = model(ids, output_attentions=True)
    torch.testing.assert_close(found.logits, right.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.attentions, right.attentions, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "encoding", "words"),
    [
        ("GptOss", "stickbreaking", "no softmax whose denominator sinks could join"),
        ("Gemma2", "path", "after their cap"),
    ],
)
def test_what_the_scores_of_a_model_do_not_allow_is_refused(name, encoding, words):
    model, ids = make_model(name), make_ids(12)
    before = model(ids).logits
    with pytest.raises(OptionError, match=words):
        zoo.equip(model, encoding)
    assert torch.equal(model(ids).logits, before)


@torch.no_grad()
def test_an_argument_that_zoo_does_not_read_is_refused_by_name():
    model, ids = make_model("Olmo3"), make_ids(8)
    zoo.equip(model, "alibi")
    with pytest.raises(OptionError, match="does not read score_bias"):
        model(ids, score_bias=torch.ones(1))


def test_a_diagnosis_names_windowed_and_full_layers():
    for name in MODELS.keys() - {"Phi3"}:
        model = make_model(name)
        zoo.equip(model, "fox", layers="windowed")
        kinds = name_layer_types(model)
        other = "none" if name in ("Llama4", "Cohere2") else "rope"
        assert kinds == ("fox, windowed", f"{other}, full", "fox, windowed")


def test_gradients_of_a_training_step_are_those_of_transformers():
    for name in ("GptOss", "Llama4", "Gemma3"):
        model, ids = make_model(name).train(), make_ids(20)

        def compute(model=model, ids=ids):
            model.zero_grad()
            model(ids, labels=ids).loss.backward()
            return {key: one.grad.clone() for key, one in model.named_parameters()}

        right = compute()
        zoo.equip(model, "rope")
        found = compute()
        assert right.keys() == found.keys()
        torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["GptOss", "Llama4"])
def test_a_mixture_of_experts_is_saved_and_loaded(name, tmp_path):
    model, ids = make_model(name), make_ids(20)
    zoo.equip(model, "fox", layers="full")
    zoo.save(model, tmp_path)
    torch.testing.assert_close(zoo.load(tmp_path)(ids).logits, model(ids).logits, atol=1e-5, rtol=0)
