"""Forms of attention as options of models: shared key heads, sums over keys, windows, and branches side by side."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from language import decoder, encoder, give_mixer, lively, text

import zoo
from zoo.attention.chain import make_factory
from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.config.command_line import parse_overrides
from zoo.data.spec import ImageSpec
from zoo.errors import OptionError
from zoo.models.decoder import Decoder
from zoo.models.generation import sample_tokens
from zoo.models.transformer import MLP, BlockOptions
from zoo.models.vit import ViT
from zoo.options import Choice
from zoo.options.signature import options
from zoo.run.build import build_data
from zoo.run.init_from import Source, copy_weights
from zoo.run.preflight import plan_backends

IMAGES = ImageSpec(channels=1, height=8, width=16, classes=5)
FORMS = [
    {"heads": 4, "kv_heads": 2},
    give_mixer("linear"),
    {"window": 4},
    {"block": BlockOptions(norm_position="parallel")},
]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(form))


def gradients(model, *inputs):
    model.train()(*inputs).square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@forms
def test_decoding_and_memory_are_one_pass(form):
    model, inputs = decoder("rope", **form), text()
    for context in (KeyValueCache(), SegmentMemory(12)):
        parts = [model(part, context=context) for part in inputs.split([3, 1, 1, 4, 3], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(inputs), atol=1e-5, rtol=1e-4)
        assert context.seen == 12


@forms
def test_a_cache_writes_the_same_text(form):
    model = decoder("rope", **form)

    def tokens(context):
        return list(
            islice(sample_tokens(model, [3, 1, 4], context, torch.Generator().manual_seed(0)), 12)
        )

    assert tokens(KeyValueCache()) == tokens(None)


@forms
def test_packed_and_padded_documents_are_the_documents_alone(form):
    for make in (decoder, encoder):
        model, inputs = make("rope", **form), text(1)
        packed = model(inputs, torch.tensor([[-1] + [0] * 4 + [1] * 7]))
        for own in (slice(1, 5), slice(5, 12)):
            torch.testing.assert_close(packed[:, own], model(inputs[:, own]), atol=1e-5, rtol=1e-4)


@forms
def test_every_parameter_learns(form):
    models = [decoder("rope", **form), encoder("rope", cls_token=True, **form)]
    assert all(
        gradient is not None for model in models for gradient in gradients(model, text()).values()
    )


@forms
def test_future_tokens_change_nothing(form):
    model, inputs = decoder("rope", **form), text()
    other = torch.cat([inputs[:, :7], (inputs[:, 7:] + 1) % 11], dim=1)
    torch.testing.assert_close(model(other)[:, :7], model(inputs)[:, :7])


@pytest.mark.parametrize("form", FORMS[:2], ids=["kv_heads", "kernel"])
def test_images_have_them_too(form):
    links = {"rope_axial": make_factory(Choice("rope_axial"))}
    model = lively(
        ViT(
            IMAGES,
            **{
                "dim": 48,
                "depth": 2,
                "heads": 2,
                "patch_size": 4,
                "encoding": links,
                "pool": "class",
                **form,
            },
        )
    )
    assert model(torch.randn(2, 1, 8, 16)).isfinite().all()
    assert all(
        gradient is not None for gradient in gradients(model, torch.randn(2, 1, 8, 16)).values()
    )


def test_a_grid_has_no_window():
    assert "window" in options(Decoder)
    assert "window" not in options(ViT)


def test_a_class_token_sees_past_the_window():
    model, inputs = encoder("none", depth=1, cls_token=True, window=2), text(1)
    changed = torch.cat([inputs[:, :9], (inputs[:, 9:] + 1) % 11], dim=1)
    first, second = (model.run_blocks(model.tokens(one)).x for one in (inputs, changed))
    moved = (first - second).abs().amax(-1)[0] > 1e-6
    assert moved.tolist() == [True] + [False] * 8 + [True] * 4


def test_the_window_is_what_a_model_of_one_layer_sees():
    model, inputs = decoder("none", depth=1, window=3), text(1)
    changed = torch.cat([(inputs[:, :1] + 1) % 11, inputs[:, 1:]], dim=1)
    moved = (model(changed) - model(inputs)).abs().amax(-1)[0] > 1e-6
    assert moved.tolist() == [True] * 3 + [False] * 9


def test_branches_side_by_side_read_one_norm():
    model = decoder(
        "rope", depth=1, block=BlockOptions(norm_position="parallel", norm="rms")
    ).double()
    block, chain, tokens = model.blocks[0], model.chains[0], model.tokens(text())
    found = block(chain.embed(tokens), chain, KeyValueCache()).x
    normed = chain.embed(tokens).replace(x=block.norm1(tokens.x))
    attended = block.attn(normed, chain, KeyValueCache())[0].x
    torch.testing.assert_close(found, tokens.x + attended + block.mlp(normed.x))
    assert not any("norm2" in name for name in model.state_dict())


def test_what_rode_along_is_taken_back_in_parallel():
    model, inputs = decoder("tape", block=BlockOptions(norm_position="parallel")), text()
    found = gradients(model, inputs)
    assert all(
        gradient is not None and gradient.any()
        for name, gradient in found.items()
        if "encoding" in name
    )
    parts = [
        model.eval()(part, context=cache)
        for cache in [KeyValueCache()]
        for part in inputs.split(4, dim=1)
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(inputs), atol=1e-5, rtol=1e-4)


def test_key_heads_must_divide_the_heads():
    with pytest.raises(OptionError, match="heads 4 is not divisible by kv_heads 3") as found:
        decoder("rope", heads=4, kv_heads=3)
    assert found.value.key == "kv_heads"


def test_weights_of_another_number_of_key_heads_are_left():
    model, trained = decoder("rope", heads=4, kv_heads=2), decoder("rope", heads=4)
    report = copy_weights(model, Source(Path("run"), trained.state_dict(), trained))
    parts = ("k_proj.weight", "v_proj.weight", "v_proj.bias")
    assert set(report.left) == {
        f"blocks.{layer}.attn.{part}" for layer in range(2) for part in parts
    }
    assert report.left["blocks.0.attn.k_proj.weight"] == "[16, 16] there, [8, 16] here"


def plan(*overrides):
    recipe = zoo.load_recipe("flipflop_fox", parse_overrides(["model.depth=2", *overrides]))
    return [
        plan_backends(zoo.build_model(recipe), build_data(recipe).spec, device)
        for device in ("cpu", "cuda")
    ]


def test_what_will_compute_it_is_told():
    types = "model.layer_types={linear: {mixer: linear}}"
    linear = plan("model.encoding=rope", types, "model.layer_pattern=[linear]")
    assert linear == [[("linear", "sums over keys, in chunks of 64")] * 2] * 2
    cpu, cuda = plan("model.encoding=rope", "model.window=8")
    assert cpu == [("sdpa", "a window, as a mask")] * 2
    assert cuda == [("flex", "a window, as blocks")] * 2


def test_a_window_may_be_the_memory(tmp_path):
    (tmp_path / "a.txt").write_text("abcdefg " * 3000)
    data = [
        "data.name=text",
        f"data.files=[{tmp_path / 'a.txt'}]",
        "data.length=16",
        "data.streams=true",
    ]
    recipe = zoo.load_recipe(
        "lm_xl",
        parse_overrides([*data, "model.memory_length=8", "model.window=${model.memory_length}"]),
    )
    assert recipe.model.options["window"] == 8


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("position", ["branch", "both"])
def test_branches_are_normed_as_the_equations_say(position, norm):
    model = decoder("rope", depth=1, block=BlockOptions(norm_position=position, norm=norm))
    block, chain = model.blocks[0], model.chains[0]
    tokens = chain.embed(model.tokens(text()))

    def attend(x):
        return block.attn(tokens.replace(x=x), chain, KeyValueCache())[0].x

    x = tokens.x
    if position == "branch":
        x = x + block.norm1(attend(x))
        x = x + block.norm2(block.mlp(x))
    else:
        x = x + block.out_norm1(attend(block.norm1(x)))
        x = x + block.out_norm2(block.mlp(block.norm2(x)))
    torch.testing.assert_close(block(tokens, chain, KeyValueCache()).x, x)


def test_norms_of_hybrids_without_a_mixer_are_refused():
    with pytest.raises(OptionError, match=r"hybrid needs layers with a mixer.*write branch"):
        decoder("rope", block=BlockOptions(norm_position="hybrid"))


def test_a_gated_gelu_multiplies_by_the_gate():
    x = torch.randn(3, 16)
    for kind, approximate in (("geglu", "none"), ("geglu_tanh", "tanh")):
        mlp = MLP(16, BlockOptions(mlp=kind, mlp_bias=False))
        gate = torch.nn.functional.gelu(mlp.gate_proj(x), approximate=approximate)
        torch.testing.assert_close(mlp(x), mlp.down_proj(gate * mlp.up_proj(x)))


def test_layer_norms_may_have_no_biases():
    model = decoder("rope", block=BlockOptions(norm_bias=False))
    assert not [name for name, _ in model.named_parameters() if "norm" in name and "bias" in name]
