"""What docs/equip.md promises of every equipped model: names, tables, layers and tokens without positions."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

import zoo  # noqa: E402
from zoo.attention.layer import find_encoded, hook_tokens  # noqa: E402
from zoo.errors import OptionError  # noqa: E402

pytestmark = pytest.mark.usefixtures("equal_models_examined_once")

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
TEXT = {**SIZES, "vocab_size": 40, "max_position_embeddings": 32, "num_hidden_layers": 1}
TEXT |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3}
GPT2 = {"vocab_size": 40, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32}
IMAGES = {**SIZES, "image_size": 16, "patch_size": 8, "num_hidden_layers": 1}
IDS = torch.tensor([[5, 7, 11, 13, 17, 19]])


def build(name, **options):
    """Build a small model of transformers with random weights."""
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    return cls(cls.config_class(**options)).eval()


@torch.no_grad()
def compute(model, ids=IDS):
    return model(ids).logits


def test_weights_keep_their_names_and_encodings_follow_the_model():
    model = build("LlamaForCausalLM", **TEXT)
    before = {name for name, _ in model.named_parameters()}
    zoo.equip(model, "fox")
    after = dict(model.named_parameters())
    added = after.keys() - before
    assert before <= after.keys()
    assert added
    assert all(name.startswith("zoo_encoding.") for name in added)
    model.to(torch.float64)
    assert {after[name].dtype for name in added} == {torch.float64}


def test_a_table_of_positions_becomes_a_buffer_of_zeros():
    model = build("GPT2LMHeadModel", **GPT2)
    assert "transformer.wpe.weight" in dict(model.named_parameters())
    zoo.equip(model, "alibi")
    assert "transformer.wpe.weight" not in dict(model.named_parameters())
    assert not dict(model.named_buffers())["transformer.wpe.weight"].any()


def test_rotary_embeddings_rotate_nothing_any_more():
    model = build("LlamaForCausalLM", **TEXT)
    swapped = IDS[:, [2, 1, 0, 3, 4, 5]]
    assert not torch.allclose(compute(model)[:, -1], compute(model, swapped)[:, -1], atol=1e-3)
    zoo.equip(model, "none")
    # one layer without positions sees the tokens before the last as a set
    gap = compute(model)[:, -1] - compute(model, swapped)[:, -1]
    assert gap.abs().max() < 1e-5


def test_layers_without_positions_get_none():
    options = {**TEXT, "num_key_value_heads": 2, "no_rope_layers": [0]}
    plain, biased = (build("SmolLM3ForCausalLM", **options) for _ in range(2))
    zoo.equip(plain, "none")
    zoo.equip(biased, "alibi")
    torch.testing.assert_close(compute(biased), compute(plain), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "special", "options"),
    [("ViTModel", 1, {}), ("Dinov2WithRegistersModel", 3, {"num_register_tokens": 2})],
)
def test_class_and_register_tokens_have_no_position(name, special, options):
    model, seen = build(name, **IMAGES, **options), []
    zoo.equip(model, "rope_axial")
    (encoded,) = find_encoded(model)

    def note(tokens):
        seen.append(tokens.has_position)
        return tokens

    with torch.no_grad(), hook_tokens(encoded, note):
        model(torch.zeros(1, 3, 16, 16))
    assert seen[0].flatten().tolist() == [False] * special + [True] * 4


def test_a_refused_model_stays_as_it_was():
    model = build("LlamaForCausalLM", **TEXT)
    right, names = compute(model), [name for name, _ in model.named_modules()]
    for encoding in ("rope_axial", "lookhere", {"name": "liere"}):
        with pytest.raises(OptionError):
            zoo.equip(model, encoding)
        assert torch.equal(compute(model), right)
        assert [name for name, _ in model.named_modules()] == names
