"""`zoo.equip` with tape, whose frames go from layer to layer, against zoo's own models."""

import pytest
import torch
from torch import nn
from without_torchvision import import_timm

import zoo
from zoo import config
from zoo.attention.chain import build_chains, make_factory
from zoo.attention.encoding import Dims
from zoo.attention.layer import Context
from zoo.attention.tokens import Tokens
from zoo.encodings.tape import TAPE
from zoo.errors import OptionError
from zoo.formats import convert as converting
from zoo.formats.convert import ConvertOptions, convert_family, read_published
from zoo.integrations.equipment import NAME
from zoo.models.transformer import AttentionOptions, Block, BlockOptions
from zoo.options import Choice
from zoo.run.build import build_task

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers renames arguments


def make_model(name="Llama", **changes):
    torch.manual_seed(0)
    cls = getattr(transformers, f"{name}ForCausalLM")
    model = cls(cls.config_class(**{**SIZES, **changes})).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.3)
    return model


def equip(model, **options):
    """Put tape into a model, with frames that attention and states change much."""
    zoo.equip(model, "tape", **options)
    for parameter in model.get_submodule(NAME).parameters():
        parameter.data.normal_(std=0.3)
    return model


def make_ids():
    return torch.randint(3, 97, (2, 16), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def compute(model, tokens, **inputs):
    return model(tokens, **inputs).logits


def list_encoding(model):
    weights = model.get_submodule(NAME).state_dict()
    return {f"encoding.{name}": weight for name, weight in weights.items()}


def test_a_llama_with_tape_computes_what_the_decoder_of_zoo_does(tmp_path, monkeypatch):
    monkeypatch.setattr(converting, "can_compare", lambda published: False)
    model = make_model()
    model.save_pretrained(tmp_path)
    own = convert_family(read_published(tmp_path), tmp_path, ConvertOptions(to="run"), {})
    plain = own.recipe.plain()
    plain["model"]["encoding"] = {"name": "tape"}
    recipe = config.from_plain(plain, origin="test", name="test")
    decoder = build_task(recipe, own.task.spec).model.eval()

    equip(model)
    decoder.load_state_dict({**own.task.model.state_dict(), **list_encoding(model)})
    ids = make_ids()
    with torch.no_grad():
        expected = decoder(ids)
    torch.testing.assert_close(compute(model, ids), expected, atol=1e-5, rtol=1e-5)
    zoo.unequip(model)
    assert (compute(model, ids) - expected).abs().max() > 1e-2, "frames changed nothing"


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
def test_an_encoder_of_torch_with_tape_computes_what_blocks_of_zoo_do(is_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        32, 4, 48, dropout=0.0, activation="gelu", batch_first=True, norm_first=is_first
    )
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    equip(encoder, causal=True)
    x, dims = torch.randn(2, 9, 32), Dims(32, 4, depth=3)
    factories = {"tape": make_factory(Choice("tape"))}
    modules, chains = build_chains(dims, factories, causal=True)
    modules.load_state_dict(encoder.get_submodule(NAME).state_dict())
    tokens = chains[0].embed(Tokens.at(x, torch.arange(9.0)[:, None]))
    options = BlockOptions(
        norm_position="pre" if is_first else "post", mlp_ratio=1.5, key_bias=True, norm_eps=1e-5
    )
    for theirs, chain in zip(encoder.layers, chains, strict=True):
        block = Block(chain.dims, options, AttentionOptions(causal=True))
        block.load_state_dict(rename(theirs))
        tokens = block(tokens, chain, Context())
    torch.testing.assert_close(encoder(x), tokens.x, atol=1e-5, rtol=1e-5)


def rename(layer):
    """Return the weights of an encoder layer by the names of a block."""
    parts = {
        "norm1": layer.norm1,
        "norm2": layer.norm2,
        "attn.o_proj": layer.self_attn.out_proj,
        "mlp.up_proj": layer.linear1,
        "mlp.down_proj": layer.linear2,
    }
    weights = {
        f"{name}.{key}": weight
        for name, part in parts.items()
        for key, weight in part.state_dict().items()
    }
    for kind in ("weight", "bias"):
        stacked = getattr(layer.self_attn, f"in_proj_{kind}").chunk(3)
        weights |= {f"attn.{name}_proj.{kind}": w for name, w in zip("qkv", stacked, strict=True)}
    return weights


def test_a_cache_padding_and_generated_text_see_the_same_frames():
    model, ids = equip(make_model()), make_ids()
    whole, cache, parts = compute(model, ids), None, []
    with torch.no_grad():
        for part in ids.split((1, 7, 8), 1):
            out = model(part, past_key_values=cache, use_cache=True)
            cache, parts = out.past_key_values, [*parts, out.logits]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-5)

    padded = torch.cat([torch.zeros(2, 4, dtype=torch.long), ids], 1)
    logits = compute(model, padded, attention_mask=(padded > 0).long())[:, 4:]
    torch.testing.assert_close(logits, whole, atol=1e-5, rtol=1e-5)

    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    texts = [
        model.generate(ids[:, :5], **options, **kind)
        for kind in ({"use_cache": False}, {}, {"cache_implementation": "static"})
    ]
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])


def test_a_saved_model_has_the_frames_and_an_unequipped_one_its_own_positions(tmp_path):
    model, ids = make_model(), make_ids()
    before = compute(model, ids)
    zoo.equip(model, "tape")
    # the first frames are those of rope, which is the model's own
    torch.testing.assert_close(compute(model, ids), before, atol=1e-5, rtol=1e-5)
    zoo.unequip(model)
    equip(model)
    zoo.save(model, tmp_path)
    assert torch.equal(compute(zoo.load(tmp_path), ids), compute(model, ids))
    zoo.unequip(model)
    assert torch.equal(compute(model, ids), before)


def find_gradients(model):
    model.zero_grad()
    model(make_ids(), labels=make_ids()).loss.backward()
    named = model.named_parameters()
    return {name: weight.grad.clone() for name, weight in named if weight.grad is not None}


def test_recomputed_layers_have_the_same_gradients_and_reentrant_ones_are_refused():
    model = equip(make_model()).train()
    expected = find_gradients(model)
    assert all(expected[f"{NAME}.tape.0.{name}.weight"].any() for name in ("mix", "read"))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    torch.testing.assert_close(find_gradients(model), expected)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    with pytest.raises(OptionError, match='"use_reentrant": False'):
        find_gradients(model)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("Llama", {"num_key_value_heads": 2}, "4 heads cannot share 2 keys"),
        ("Cohere2", {}, r"no module behind model\.layers\.0\.self_attn receives"),
        ("SmolLM3", {"no_rope_layers": [1, 0, 1]}, "all layers need it, and 1 of this model"),
    ],
)
def test_a_model_that_cannot_carry_frames_is_refused(name, changes, words):
    model = make_model(name, **changes)
    before = compute(model, make_ids())
    with pytest.raises(OptionError, match=words):
        zoo.equip(model, "tape")
    assert torch.equal(compute(model, make_ids()), before)


FAMILIES = {
    "Mistral": {"sliding_window": 8},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Phi3": {},
    "SmolLM3": {},
    "Granite": {},
    "Olmo2": {},
    "Olmo3": {},
    "Gemma2": {"head_dim": 8},
    "Gemma3": {"head_dim": 8},
    "GptOss": {"head_dim": 8},
    "Mixtral": {},
    "StableLm": {},
    "DeepseekV3": {
        "n_routed_experts": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
    },
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAMILIES)
def test_frames_reach_the_next_layer_of_many_families(name):
    model, ids = make_model(name, **FAMILIES[name]), make_ids()
    before, cache, parts = compute(model, ids), None, []
    whole = compute(equip(model), ids)
    with torch.no_grad():
        for part in ids.split((7, 1, 8), 1):
            out = model(part, past_key_values=cache, use_cache=True)
            cache, parts = out.past_key_values, [*parts, out.logits]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-4, rtol=1e-4)
    gradients = find_gradients(model.train())
    assert gradients[f"{NAME}.tape.0.mix.weight"].any(), "no later layer reads the frames"
    zoo.unequip(model.eval())
    assert torch.equal(compute(model, ids), before)


def test_single_layers_with_frames_are_refused():
    with pytest.raises(OptionError, match="so that all layers need it"):
        zoo.equip(make_model(), "tape", layers=[0])


def test_a_model_of_timm_is_refused(monkeypatch):
    timm = import_timm()
    monkeypatch.setattr(TAPE, "causal_only", False)
    monkeypatch.setattr(TAPE, "axes", (1, 2))
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    with pytest.raises(OptionError, match="no image model of timm hands on"):
        zoo.equip(timm.models.VisionTransformer(**sizes, num_classes=0), "tape")


def test_a_layer_called_alone_is_refused():
    model = equip(make_model())
    compute(model, make_ids())
    model.model.layers[0].post_attention_layernorm._forward_pre_hooks.clear()
    with pytest.raises(OptionError, match="layer 0 handed on nothing of what tape carries"):
        compute(model, make_ids())
