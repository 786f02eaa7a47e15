"""A recipe that is a Llama or a ViT is one in transformers and timm; what is none is refused by its options."""

import json

import pytest
import torch
from tiny import TINY, language
from untrained import write_checkpoint
from without_torchvision import import_timm

import zoo as package
from zoo.api.tools import convert, export
from zoo.formats.native import join_halves, split_halves

transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
VIT = [*TINY, "model.encoding=learned", "model.pool=class", "model.depth=2"]
FORMS = [
    [],
    ["model.kv_heads=1", "model.tie_embeddings=false"],
    ["model.block.proj_bias=false", "model.block.mlp_bias=false"],
    ["model.block.key_bias=true", "model.block.layer_scale=0.5", "model.block.norm_eps=1e-5"],
]


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_a_decoder_with_rope_is_a_llama(tmp_path, options):
    overrides = language(tmp_path / "text.txt", "model.depth=2", *options)
    write_checkpoint(tmp_path / "run", "lm_rope", overrides)
    export(tmp_path / "run", tmp_path / "out", to="llama")
    model, found = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(found.values()), found
    for length in (16, 32):
        tokens = torch.randint(10, (2, length))
        with torch.no_grad():
            right = package.load(tmp_path / "run").model(tokens)
            torch.testing.assert_close(model.eval()(tokens).logits, right, **CLOSE)


def test_a_llama_has_the_tokens_of_the_model(tmp_path):
    write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt"))
    export(tmp_path / "run", tmp_path / "out", to="llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    vocabulary = package.load(tmp_path / "run").spec.vocabulary
    assert tokenizer("abc de\n")["input_ids"] == vocabulary.encode("abc de\n")
    assert len(tokenizer) == len(vocabulary)


def test_every_option_in_the_way_of_a_llama_is_named(tmp_path, zoo):
    options = ["model.encoding=alibi", "model.window=8", "model.block.norm=layer"]
    types = "{one: {temperature: {floor: 4}}, two: {encoding: none}}"
    options += [f"model.layer_types={types}", "model.layer_pattern=[one,two]", "model.depth=2"]
    write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt", *options))
    code, _, message = zoo("export", "run", "to=llama", "out")
    assert code == 2
    assert "5 config errors" in message
    assert "model.layer_types.one.temperature: a llama has null" in message
    assert "model.layer_types.two.encoding: a llama has [rope], this model [none]" in message
    for part in ("model.encoding: a llama has [rope], this model [alibi]", "window", "block.norm"):
        assert part in message
    assert not (tmp_path / "out").exists()


def test_a_mixer_is_in_the_way_of_a_llama(tmp_path, zoo):
    options = ["model.layer_types={one: {mixer: short_conv}, two: {}}", "model.depth=2"]
    options += ["model.layer_pattern=[one,two]"]
    write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt", *options))
    code, _, message = zoo("export", "run", "to=llama", "out")
    assert code == 2
    problem = "a llama has attention in every layer, this model short_conv"
    assert f"model.layer_types.one.mixer: {problem}" in message


DIVISORS = "short_factor: [1, 1.5, 2, 4], long_factor: [1, 3, 5, 9]"
RULES = {
    "linear": "factor: 2",
    "ntk": "factor: 2",
    "yarn": "factor: 4, original: 8, beta_fast: 4, truncate: false, mscale: 2, mscale_all_dim: 1",
    "llama3": "factor: 4, original: 16, low_freq_factor: 0.5, high_freq_factor: 5",
    "dynamic": "factor: 2, original: 8, length: 32",
    "longrope": f"original: 8, length: 32, factor: 4, {DIVISORS}",
    "proportional": "fraction: 0.5, factor: 2",
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_rope_is_one_of_a_llama(tmp_path, caplog, rule):
    """Field by field: what is exported is read again, and computes the same in transformers."""
    given = f"{{name: rope, base: 500, scaling: {{rule: {rule}, {RULES[rule]}}}}}"
    overrides = language(tmp_path / "text.txt", f"model.encoding=[{given}]")
    write_checkpoint(tmp_path / "run", "lm_rope", overrides)
    export(tmp_path / "run", tmp_path / "out", to="llama", verbose=None)
    assert ("chooses them by the length" in caplog.text) == (rule in ("dynamic", "longrope"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_parameters"]["rope_type"] == ("default" if rule == "ntk" else rule)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens, own = torch.randint(10, (2, 32)), package.load(tmp_path / "run").model
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, own(tokens), **CLOSE)

    again = package.load(convert(tmp_path / "out", to=tmp_path / "again").run).model
    own, again = (one.encoding["rope"].scaling for one in (own, again))
    if rule != "ntk":
        said = {key: one for key, one in vars(own).items() if one is not None and key != "length"}
        assert {key: getattr(again, key) for key in said} == said


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("rotary_fraction: 0.5", "model.encoding.0.rotary_fraction"),
        ("scaling: {rule: clipped}", "model.encoding.0.scaling.rule"),
    ],
)
def test_other_forms_of_rope_are_refused(tmp_path, zoo, options, key):
    given = f"model.encoding=[{{name: rope, {options}}}]"
    write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt", given))
    code, _, message = zoo("export", "run", "to=llama", "out")
    assert code == 2
    assert key in message


@pytest.mark.parametrize("options", [[], ["model.block.layer_scale=0.5"]], ids=str)
def test_a_vision_transformer_is_one_in_transformers_and_timm(tmp_path, options):
    write_checkpoint(tmp_path / "run", "vit_comrope", [*VIT, *options])
    export(tmp_path / "run", tmp_path / "out", to="vit")
    task, images = package.load(tmp_path / "run"), torch.randn(2, 1, 16, 16)
    model, found = transformers.ViTForImageClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(found.values()), found
    with torch.no_grad():
        right = task.model(images)
        torch.testing.assert_close(model.eval()(images).logits, right, **CLOSE)
        timm = import_timm()
        model = timm.create_model(f"local-dir:{tmp_path / 'out' / 'timm'}", pretrained=True)
        torch.testing.assert_close(model.eval()(images), right, **CLOSE)


def test_every_option_in_the_way_of_a_vit_is_named(tmp_path, zoo):
    write_checkpoint(tmp_path / "run", "vit_comrope", [*TINY, "model.registers=2"])
    code, _, message = zoo("export", "run", "to=vit", "out")
    assert code == 2
    for key in ("encoding", "pool", "registers"):
        assert f"model.{key}: a vit has" in message


@pytest.mark.parametrize(("recipe", "target"), [("lm_rope", "vit"), ("vit_comrope", "llama")])
def test_texts_are_no_images(tmp_path, zoo, recipe, target):
    overrides = language(tmp_path / "text.txt") if recipe == "lm_rope" else TINY
    write_checkpoint(tmp_path / "run", recipe, overrides)
    code, _, message = zoo("export", "run", f"to={target}", "out")
    assert code == 2
    assert "model.name" in message


def test_halves_are_split_and_joined_to_the_bit():
    weight = torch.randn(12, 5)
    assert torch.equal(join_halves(split_halves(weight, 3), 3), weight)
    assert split_halves(torch.arange(8), 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
