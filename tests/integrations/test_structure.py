"""`zoo.equip` finds attentions by what they do, and refuses what it cannot prove, by law."""

import importlib
import json
import re
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

import zoo  # noqa: E402
from zoo.errors import OptionError  # noqa: E402
from zoo.integrations.own_rotation import fit_rotation, is_rotation_in_other_axes, unwrap_angles  # noqa: E402
from zoo.integrations.structure import find_structure  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "build"))
types = importlib.import_module("equip_types")
small_models = importlib.import_module("small_models")
sys.path.pop(0)

RECORDED = types.read_record()["rows"] if types.RECORD.exists() else {}
# One of each way to compute attention: latents, chosen keys, two calls, streams, recurrences, ...
DAILY = (
    "cohere2",
    "diffllama",
    "doge",
    "gemma4_text",
    "gptj",
    "hunyuan_v1_dense",
    "inkling_text",
    "lfm2",
    "mpt",
    "nanochat",
)
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def mask_errors(row):
    """A row without seconds and sizes of errors, which other processors round otherwise."""
    return {
        key: re.sub(r"\d\.\d+e[+-]\d+", "#", value) if isinstance(value, str) else value
        for key, value in row.items()
        if key != "seconds"
    }


def check_type(name):
    row = mask_errors(types.study(name))
    assert row == mask_errors(RECORDED[name]), "python docs/build/equip_types.py"


@pytest.mark.parametrize("name", DAILY)
def test_a_type_does_what_the_page_says(name):
    check_type(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted({*RECORDED} - {*DAILY}))
def test_every_type_does_what_the_page_says(name):
    check_type(name)


def test_the_page_shows_what_was_recorded():
    record = types.read_record()
    assert types.PAGE.read_text(encoding="utf-8") == types.write_page(record)
    rows = [row for row in RECORDED.values() if "unbuilt" not in row]
    assert sum(map(types.is_equipped, rows)) >= 110
    assert sum(types.is_equipped(r) or r.get("diagnosed") == "yes" for r in rows) >= 130
    assert not [name for name, row in RECORDED.items() if "failed" in row]


def build_llama(**options):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **options})).eval()


def attend(q, k, v, mask, scale, change=lambda scores: scores):
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
    scores = change(q @ k.mT * scale)
    if mask is not None:
        scores = scores + mask
    return (scores.softmax(-1) @ v).transpose(1, 2).contiguous()


def distances(scores):
    rows, columns = scores.shape[-2:]
    return (torch.arange(columns) - torch.arange(columns - rows, columns)[:, None]).abs()


def ignore_mask(module, q, k, v, mask, scaling=None, **options):
    return attend(q, k, v, None, scaling), None


def ignore_padding(module, q, k, v, mask, scaling=None, **options):
    rows, columns = q.shape[2], k.shape[2]
    causal = torch.full((rows, columns), -1e30).triu(1 + columns - rows)
    return attend(q, k, v, causal, scaling), None


def drop_scale(module, q, k, v, mask, scaling=None, **options):
    return attend(q, k, v, mask, 1.0), None


def cap_scores(module, q, k, v, mask, scaling=None, **options):
    return attend(q, k, v, mask, scaling, lambda s: torch.tanh(s / 2) * 2), None


def add_alibi(module, q, k, v, mask, scaling=None, **options):
    return attend(q, k, v, mask, scaling, lambda s: s - 0.1 * distances(s)), None


def add_window(module, q, k, v, mask, scaling=None, **options):
    return attend(q, k, v, mask, scaling, lambda s: s.masked_fill(distances(s) > 5, -1e30)), None


def sharpen_one_head(module, q, k, v, mask, scaling=None, **options):
    factors = torch.tensor([2.0, 1.0, 1.0, 1.0])[:, None, None]
    return attend(q, k, v, mask, scaling, lambda s: s * factors), None


def average_values(module, q, k, v, mask, scaling=None, **options):
    return attend(q, k, (v + v.roll(1, 2)) / 2, mask, scaling), None


FUNCTIONS = [
    ignore_mask,
    ignore_padding,
    drop_scale,
    cap_scores,
    add_alibi,
    add_window,
    sharpen_one_head,
    average_values,
]


@torch.no_grad()
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("encoding", ["own", "alibi"])
def test_an_attention_that_computes_something_else_is_refused(function, encoding):
    transformers.AttentionInterface.register("broken", function)
    transformers.AttentionMaskInterface.register("broken", transformers.masking_utils.eager_mask)
    model = build_llama()
    model.set_attn_implementation("broken")
    with pytest.raises(OptionError, match=r"law .*the attention"):
        zoo.equip(model, encoding)
    assert "zoo_encoding" not in dict(model.named_children())


def change_angles(model, layer, change):
    attention = model.model.layers[layer].self_attn
    original = attention.forward

    def forward(hidden_states, position_embeddings, **options):
        return original(hidden_states, position_embeddings=change(*position_embeddings), **options)

    attention.forward = forward


ANGLES = {
    "twice": lambda cos, sin: (cos**2 - sin**2, 2 * sin * cos),
    "stretched": lambda cos, sin: (cos * 1.2, sin),
    "of the token before": lambda cos, sin: (cos.roll(1, 1), sin.roll(1, 1)),
    "backwards": lambda cos, sin: (cos, -sin),
}


@torch.no_grad()
@pytest.mark.parametrize("name", ANGLES)
def test_angles_that_are_not_those_of_the_rotary_module_are_refused_by_layer(name):
    model = build_llama()
    change_angles(model, 1, ANGLES[name])
    with pytest.raises(OptionError, match=r"law .*layers?(\.| )1"):
        zoo.equip(model, "fox")


@torch.no_grad()
def test_positions_that_a_module_adds_in_its_own_way_are_refused_by_name():
    model = build_llama()
    drift = torch.linspace(0, 1, 200)[:, None]
    model.model.layers[1].mlp.register_forward_hook(
        lambda module, args, out: out + drift[: out.shape[1]]
    )
    with pytest.raises(OptionError, match=r"law positions.*layers\.1.*equal tokens"):
        zoo.equip(model, "alibi")


@torch.no_grad()
def test_positions_inside_an_attention_are_refused_by_name():
    """No module gives them, so that nothing can turn them off."""
    model = build_llama()
    drift = torch.linspace(0, 1, 200)[:, None]
    model.model.layers[1].self_attn.q_proj.register_forward_hook(
        lambda module, args, out: out + drift[: out.shape[1]]
    )
    with pytest.raises(OptionError, match=r"law .*layers\.1\.self_attn"):
        zoo.equip(model, "t5")


@torch.no_grad()
def test_the_encoder_of_a_speech_model_is_equipped():
    sizes = {"d_model": 32, "num_mel_bins": 16, "max_source_positions": 32, "vocab_size": 128}
    parts = ("layers", "attention_heads", "ffn_dim")
    options = {
        f"{side}_{part}": size
        for side in ("encoder", "decoder")
        for part, size in zip(parts, (2, 4, 64), strict=True)
    }
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.WhisperConfig(**sizes, **options, **tokens)
    whole = transformers.WhisperModel(config).eval()
    model, sounds = whole.encoder, torch.randn(2, 16, 64)
    right = model(sounds).last_hidden_state
    zoo.equip(model, "own")
    torch.testing.assert_close(model(sounds).last_hidden_state, right, atol=1e-5, rtol=0)
    zoo.unequip(model)
    report = zoo.equip(model, "alibi")
    assert "embed_positions: set to 0" in str(report)
    assert (model(sounds).last_hidden_state - right).abs().max() > 1e-3
    zoo.unequip(model)
    assert torch.equal(model(sounds).last_hidden_state, right)
    with pytest.raises(OptionError, match="is_encoder_decoder"):
        zoo.equip(whole, "alibi")


@torch.no_grad()
def test_windows_of_images_are_refused_by_name():
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "window_size": 4}
    config = transformers.SwinConfig(**sizes, depths=[1, 1], num_heads=[2, 4])
    model, images = (
        transformers.SwinForImageClassification(config).eval(),
        torch.randn(2, 3, 32, 32),
    )
    reason = r"windows as rows of their own \(8 rows of 16 tokens for 2 images\).*output_attentions"
    with pytest.raises(OptionError, match=reason):
        zoo.equip(model, "own")
    with pytest.raises(OptionError, match=reason):
        zoo.diagnose(model, {"pixel_values": images})
    # what the message names: weights [B windows, H, tokens, tokens]
    model.set_attn_implementation("eager")
    first = model(images, output_attentions=True).attentions[0]
    assert first.shape == (2 * 16, 2, 16, 16)


@torch.no_grad()
def test_a_model_on_the_meta_device_has_the_structure_of_one_with_weights():
    for name in ("llama", "glm", "deepseek_v3", "gpt2", "gemma4_text", "qwen3_next"):
        model = small_models.build_model(name)
        with torch.device("meta"):
            twin = type(model)(model.config)
        right, found = find_structure(model), find_structure(twin)
        assert [one.path for one in right.attentions] == [one.path for one in found.attentions]
        for one, other in zip(right.attentions, found.attentions, strict=True):
            assert one.rotation is other.rotation or one.rotation.equals(other.rotation)
            assert (one.dim, one.heads, one.kv_heads, one.head_dim) == (
                other.dim,
                other.heads,
                other.kv_heads,
                other.head_dim,
            )
        assert (right.tables, right.mixers, right.is_causal) == (
            found.tables,
            found.mixers,
            found.is_causal,
        )
        assert all(parameter.is_meta for parameter in twin.parameters())


@torch.no_grad()
def test_a_large_model_on_the_meta_device_is_equipped_in_seconds():
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=8))
    started = time.process_time()
    zoo.equip(model, "alibi")
    assert time.process_time() - started < 30
    assert all(parameter.is_meta for parameter in model.parameters())


@torch.no_grad()
def test_rotations_turn_the_channels_that_the_model_turns():
    model = small_models.build_model("deepseek_v3")
    ids = types.make_ids()
    zoo.equip(model, {"name": "rope", "base": 50.0})
    assert model.zoo_encoding["rope"].width == 8  # of the 24 channels of a head
    whole = types.compute(model, ids)
    torch.testing.assert_close(types.decode(model, ids), whole, atol=1e-4, rtol=0)
    zoo.unequip(model)
    zoo.equip(model, {"name": "rope", "base": 50.0, "rotary_fraction": 1.0})
    assert model.zoo_encoding["rope"].width == 24


@torch.no_grad()
def test_a_folder_of_the_version_before_turns_all_channels_as_it_did(tmp_path):
    model, ids = small_models.build_model("glm"), types.make_ids()
    zoo.equip(model, {"name": "rope", "base": 50.0, "rotary_fraction": 1.0})
    right = types.compute(model, ids)
    zoo.save(model, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    entry = config["zoo"]
    del entry["turned_channels"], entry["encoding"][0]["rotary_fraction"]
    path.write_text(json.dumps(config), encoding="utf-8")
    torch.testing.assert_close(types.compute(zoo.load(tmp_path), ids), right, atol=1e-5, rtol=0)


@torch.no_grad()
def test_an_attention_that_is_called_without_its_hooks_is_refused():
    """It would compute no encoding, in silence."""
    model = build_llama()
    zoo.equip(model, "alibi")
    attention, states = model.model.layers[0].self_attn, torch.randn(1, 5, 32)
    angles = model.model.rotary_emb(states, torch.arange(5)[None])
    with pytest.raises(OptionError, match="without its hooks"):
        attention.forward(states, position_embeddings=angles, attention_mask=None)


def test_own_has_no_options_and_stands_alone():
    model = build_llama()
    with pytest.raises(OptionError, match="own has no options"):
        zoo.equip(model, {"name": "own", "base": 3.0})
    with pytest.raises(OptionError, match="own cannot be combined"):
        zoo.equip(model, ["own", "alibi"])


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("start", [0, 4])
def test_a_rotation_is_measured(halves, start):
    draw = torch.Generator().manual_seed(0)
    off = torch.randn(2, 3, 24, 12, generator=draw, dtype=torch.float64)
    frequencies = torch.tensor([1.3, 0.2, 0.004, 0.0]).double()
    turned = off[..., start : start + 8]
    pairs = (
        torch.complex(*turned.chunk(2, -1))
        if halves
        else torch.view_as_complex(turned.unflatten(-1, (4, 2)).contiguous())
    )
    angles = torch.arange(24).double()[:, None] * frequencies
    pairs = pairs * torch.polar(torch.full_like(angles, 1.5), angles)
    turned = (
        torch.cat([pairs.real, pairs.imag], -1) if halves else torch.view_as_real(pairs).flatten(-2)
    )
    on = off.clone()
    on[..., start : start + 8] = turned
    rotation = fit_rotation(off, on, [8])
    assert (rotation.channels.start, rotation.channels.stop) == (start, start + 8)
    assert rotation.channels.halves == halves
    assert rotation.factor == pytest.approx(1.5)
    torch.testing.assert_close(rotation.frequencies, frequencies)
    with pytest.raises(OptionError, match="no rotation"):
        fit_rotation(off, on * torch.linspace(1, 2, 12), [8])


def test_a_rotation_between_scales_is_told_from_other_maps():
    draw = torch.Generator().manual_seed(0)
    off = torch.randn(2, 3, 24, 8, generator=draw, dtype=torch.float64)
    angles = torch.arange(24).double()[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
    cos, sin = angles.cos(), angles.sin()
    gains = torch.linspace(0.5, 2, 8).double()
    first, second = (off / gains).chunk(2, -1)
    on = torch.cat([first * cos - second * sin, second * cos + first * sin], -1) * gains
    assert is_rotation_in_other_axes(off, on, 8)
    assert not is_rotation_in_other_axes(off, on * 1.1, 8)
    assert not is_rotation_in_other_axes(off, off, 8)


def test_angles_are_unwrapped_over_gaps():
    frequencies = torch.tensor([3.0, 1.0, 1e-3]).double()
    places = (0, 1, 2, 3, 5, 8, 13)
    angles = torch.tensor(places).double()[:, None] * frequencies
    wrapped = torch.atan2(angles.sin(), angles.cos())
    torch.testing.assert_close(unwrap_angles(wrapped, places), frequencies)
