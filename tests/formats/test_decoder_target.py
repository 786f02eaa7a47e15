"""Recipes whose layers differ are exported as the architectures that have such layers, or refused by name."""

import pytest
import torch
from tiny import language
from untrained import write_checkpoint

import zoo as package
from zoo.api.tools import convert, export
from zoo.errors import RecipeError

transformers = pytest.importorskip("transformers")

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
SLIDING = "{local: {window: 4}, global: {}}"
NO_ROPE = "{local: {}, global: {encoding: none, window: 5}}"
DEPTHS = {"lm_irope": 4, "lm_sssl": 4, "lm_gemma": 6}
PATTERN = "model.layer_pattern=[local,global]"


def write(tmp_path, recipe, *words):
    depth = f"model.depth={DEPTHS.get(recipe, 2)}"
    write_checkpoint(tmp_path / "run", recipe, language(tmp_path / "text.txt", depth, *words))


@pytest.mark.parametrize(
    ("recipe", "target", "words"),
    [
        ("lm_sssl", "qwen3", ["model.block.mlp_bias=false", "model.layer_types.short.window=4"]),
        ("lm_rope", "smollm3", [f"model.layer_types={NO_ROPE}", PATTERN]),
    ],
)
@torch.no_grad()
def test_a_recipe_whose_layers_differ_is_an_architecture_that_has_them(
    tmp_path, recipe, target, words
):
    write(tmp_path, recipe, *words)
    export(tmp_path / "run", tmp_path / "out", to=target)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens, own = torch.randint(10, (2, 32)), package.load(tmp_path / "run").model
    torch.testing.assert_close(model(tokens).logits, own(tokens), **CLOSE)


@pytest.mark.parametrize("scaled", ["branch", "both"])
@torch.no_grad()
def test_layer_scale_is_multiplied_into_the_norm_before_it(tmp_path, scaled):
    words = [f"model.block={{norm_position: {scaled}, layer_scale: 0.3, qk_norm: true}}"]
    norm = "model.block.norm_eps=1e-6"
    own = {
        "branch": ["model.block.qk_norm_joint=true", "model.block.mlp=swiglu"],
        "both": ["model.scale_embeddings=true", "model.block.mlp=geglu_tanh"],
    }[scaled]
    words += ["model.block.norm=rms", "model.block.mlp_bias=false", norm, *own]
    write(tmp_path, "lm_rope", *words)
    target = {"branch": "olmo3", "both": "gemma3"}[scaled]
    export(tmp_path / "run", tmp_path / "out", to=target)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens, right = torch.randint(10, (2, 16)), package.load(tmp_path / "run").model
    torch.testing.assert_close(model(tokens).logits, right(tokens), **CLOSE)


NORMS = ["model.block.qk_norm=true"]
GEMMA = ["model.scale_embeddings=true", "model.block.norm_position=both"]
GEMMA += ["model.block.mlp=geglu_tanh"]
OLMO = ["model.block.norm_position=branch", "model.block.qk_norm_joint=true", *NORMS]
TARGETS = {
    "llama": [],
    "smollm3": [],
    "qwen3": NORMS,
    "olmo3": OLMO,
    "gemma2": GEMMA,
    "gemma3": [*GEMMA, *NORMS],
}


@pytest.mark.parametrize(
    "head_dim",
    [pytest.param(16, id="wide"), pytest.param(2, id="narrow", marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize("target", TARGETS)
@torch.no_grad()
def test_heads_of_another_width_go_to_an_architecture_and_back(tmp_path, target, head_dim):
    words = ["model.heads=4", "model.kv_heads=2", f"model.head_dim={head_dim}"]
    write(tmp_path, "lm_rope", *words, "model.block.mlp_bias=false", *TARGETS[target])
    export(tmp_path / "run", tmp_path / "out", to=target)
    result = convert(tmp_path / "out", to=tmp_path / "back")
    assert result.difference < 1e-5
    tokens = torch.randint(10, (2, 16))
    first, second = (package.load(tmp_path / name).model(tokens) for name in ("run", "back"))
    torch.testing.assert_close(second, first, **CLOSE)


@pytest.mark.parametrize(
    ("target", "words", "part"),
    [
        (
            "llama",
            ["model.dim=18", "model.head_dim=8"],
            "model.heads: a llama has heads that divide",
        ),
        ("gemma2", ["model.dim=18", "model.head_dim=8"], "model.heads: a gemma2 has heads that"),
        ("cohere2", ["model.dim=18", "model.head_dim=8"], "model.heads: a cohere2 has heads that"),
        ("cohere2", ["model.head_dim=8"], "model.head_dim: a cohere2 has head_dim 4"),
    ],
)
def test_heads_that_an_architecture_refuses_are_named(tmp_path, target, words, part):
    write(tmp_path, "lm_rope", "model.heads=4", *words)
    with pytest.raises(RecipeError) as caught:
        export(tmp_path / "run", tmp_path / "out", to=target)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "target", "words", "parts"),
    [
        ("lm_irope", "smollm3", [], ["layer_types.global.temperature: a smollm3 has null"]),
        ("lm_gemma", "gemma3", [], ["block.norm_position: a gemma3 has both", "block.mlp:"]),
        ("lm_gemma", "qwen3", [], ["layer_types.global.encoding: a qwen3 has one encoding"]),
        ("lm_rope", "llama", ["model.logit_softcap=5"], ["model.logit_softcap: a llama has null"]),
        ("lm_rope", "llama", ["model.sinks=true"], ["model.sinks: a llama has false"]),
        (
            "lm_rope",
            "cohere2",
            [f"model.layer_types={SLIDING}", PATTERN],
            ["model.encoding: a cohere2 has rope in layers with a window, and none in others"],
        ),
        (
            "lm_sssl",
            "qwen3",
            ["model.layer_types.long.window=9", "model.block.qk_norm_eps=0.1"],
            ["layer_types.long.window: a qwen3 has one window", "block.qk_norm_eps"],
        ),
    ],
)
def test_what_an_architecture_lacks_is_refused_by_name(tmp_path, recipe, target, words, parts):
    write(tmp_path, recipe, *words)
    with pytest.raises(RecipeError) as caught:
        export(tmp_path / "run", tmp_path / "out", to=target)
    for part in parts:
        assert part in str(caught.value)
    assert not (tmp_path / "out").exists()
