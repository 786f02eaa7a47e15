"""Plain models of other libraries are diagnosed as they are, and left as they were."""

import warnings

import pytest
import torch

transformers = pytest.importorskip("transformers")

import zoo  # noqa: E402
from zoo.attention.layer import find_encoded  # noqa: E402

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
UNKNOWN = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0, "twist": 1.0}
IMAGES = {"image_size": 32, "patch_size": 8}
MODELS = {
    "Llama": ({}, ("rope",)),
    "a rope without options": ({"rope_parameters": UNKNOWN}, ("rope",)),
    "GPT2": ({"n_embd": 32, "n_layer": 2, "n_head": 4}, ("its own positions",)),
    "Bert": ({}, ("its own positions",)),
    "ViT": (IMAGES, ("its own positions",)),
}


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def build(name):
    options, _ = MODELS[name]
    kind = name if hasattr(transformers, f"{name}Model") else "Llama"
    torch.manual_seed(0)
    sizes = {**SIZES, **options}
    if name == "GPT2":
        sizes = {"vocab_size": 97, "n_positions": 64, **options}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    return getattr(transformers, f"{kind}Model")(config).eval()


def make_batch(name):
    draw = torch.Generator().manual_seed(1)
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=draw)}
    return {"input_ids": torch.randint(3, 97, (2, 12), generator=draw)}


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_the_page_shows_the_attention_of_a_plain_model(name, tmp_path):
    model, batch = build(name), make_batch(name)
    model.set_attn_implementation("eager")
    right = model(**batch, output_attentions=True)
    page = tmp_path / "page.html"
    found = zoo.diagnose(model, batch, to=page, verbose=False).report.runs[0]

    torch.testing.assert_close(
        found.attended.weights, torch.stack(right.attentions, 1), atol=1e-5, rtol=0
    )
    assert found.encoding == MODELS[name][1]
    refusals = {control.refused for control in found.controls if control.name != "unchanged"}
    if found.encoding == ("rope",):
        assert refusals == {""}
    else:
        assert refusals == {
            "the model has its own positions, which zoo cannot change; equip it first"
        }
    # The model is as it was.
    assert not find_encoded(model)
    assert model.config._attn_implementation == "eager"
    assert torch.equal(model(**batch).last_hidden_state, right.last_hidden_state)
