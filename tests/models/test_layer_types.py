"""Layers that differ: the pattern, what each layer has, and all laws of a decoder for mixed ones."""

from __future__ import annotations

import pickle
import re

import pytest
import torch
import torch.nn.functional as F
from language import decoder, encoder, links, lively, text

import zoo
from zoo import registry
from zoo.attention.chain import list_links
from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.attention.layer import Context, SelfAttention
from zoo.attention.mixer import Mixer, make_mixer_factory
from zoo.attention.temperature import Temperature
from zoo.attention.tokens import Tokens
from zoo.data.spec import ImageSpec, PointSpec
from zoo.errors import OptionError, RecipeError
from zoo.mixers.gated_delta import GatedDelta
from zoo.models.layer_types import expand_pattern, list_runs
from zoo.models.point_encoder import PointEncoder
from zoo.models.transformer import enable_activation_checkpointing
from zoo.models.vit import ViT
from zoo.options import Choice

ROPE_10 = {"encoding": {"rope": lambda dims: zoo.encoding("rope", dims, base=10.0)}}


def mixer(name):
    return make_mixer_factory(Choice(name, {}))


ROPE_1000 = {"encoding": {"rope": lambda dims: zoo.encoding("rope", dims, base=1000.0)}}
# by name, the encoding of the model, its types of layers, and the options of the model
MODELS = {
    "windows": ("rope", [{"window": 4}, {}, {"window": 16}], {}),
    "rope and none": ("rope", [{}, {"encoding": links("none")}], {}),
    "three encodings": ("alibi", [{}, {"encoding": links("rope")}, {"encoding": links("fox")}], {}),
    "two bases": ("none", [{**ROPE_10, "window": 3}, ROPE_1000], {}),
    "an input": ("sinusoidal", [{"encoding": links("fox")}, {"window": 5}], {}),
    "updated keys": ("none", [{"encoding": links("path"), "window": 4}, {}], {}),
    "scores": (
        "rope",
        [
            {"sinks": True, "window": 4},
            {"softcap": 2.0, "encoding": links("none"), "temperature": Temperature(floor=4)},
            {"encoding": links("ssmax")},
        ],
        {},
    ),
    **{
        f"{name} and attention": ("rope", [{"mixer": mixer(name)}, {"window": 6}], {"kv_heads": 1})
        for name in registry.names("mixers")
    },
    "mixers only": ("sinusoidal", [{"mixer": mixer("gated_delta")}], {}),
    "own tables": ("rope", [{"encoding": links("selective_rope")}, ROPE_10], {"kv_heads": 1}),
}
parametrized = pytest.mark.parametrize("name", MODELS)


def make_model(name, make=decoder, **options):
    encoding, types, own = MODELS[name]
    names = [f"type{number}" for number in range(len(types))]
    chosen = {"layer_types": dict(zip(names, types, strict=True)), "layer_pattern": names}
    torch.manual_seed(0)
    return make(encoding, depth=4, **{**chosen, **own, **options}).double()


def near(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-9)


@parametrized
@torch.no_grad()
def test_decoding_with_a_cache_equals_one_pass(name):
    model, inputs, cache = make_model(name), text(2, 20), KeyValueCache()
    counts = (6, *(1,) * 5, 2, 7)
    parts = [model(part, context=cache) for part in inputs.split(counts, 1)]
    near(torch.cat(parts, 1), model(inputs))


@torch.no_grad()
def test_a_cache_keeps_what_the_window_of_each_layer_needs():
    model, cache = make_model("windows"), KeyValueCache()
    for part in text(1, 30).split(10, 1):
        model(part, context=cache)
    sizes = cache.measure()
    assert [sizes[layer].tokens for layer in range(4)] == [3, 30, 15, 3]
    bytes_per_token = 8 * 2 * model.blocks[0].attn.k_proj.out_features  # float64, keys and values
    assert all(size.bytes == size.tokens * bytes_per_token for size in sizes.values())


@torch.no_grad()
def test_a_cache_keeps_values_per_token_only_where_an_encoding_has_them():
    model, cache = make_model("three encodings"), KeyValueCache()
    model(text(1, 6), context=cache)
    kept = [set(one.tokens.per_token) for one in cache._layers.values()]
    assert kept == [set(), set(), {"log_forget"}, set()]
    sizes = [one.bytes for one in cache.measure().values()]
    heads = model.blocks[0].attn.dims.heads
    assert [size - sizes[0] for size in sizes] == [0, 0, 8 * 6 * heads, 0]


@parametrized
@torch.no_grad()
def test_packing_equals_separate_texts(name):
    model, inputs = make_model(name), text(1, 20)
    documents = torch.tensor([[0] * 6 + [1] * 14])
    apart = [model(part) for part in inputs.split((6, 14), 1)]
    near(model(inputs, documents), torch.cat(apart, 1))


@parametrized
@torch.no_grad()
def test_padding_changes_nothing(name):
    model, inputs = make_model(name), text(1, 9)
    left = F.pad(inputs, (5, 0)), F.pad(torch.zeros_like(inputs), (5, 0), value=-1)
    right = F.pad(inputs, (0, 5)), F.pad(torch.zeros_like(inputs), (0, 5), value=-1)
    padded, documents = (torch.cat(one) for one in zip(left, right, strict=True))
    got = model(padded, documents)
    near(got[0, 5:], model(inputs)[0])
    near(got[1, :9], model(inputs)[0])


@parametrized
@torch.no_grad()
def test_a_prefix_does_not_see_what_follows(name):
    model, inputs = make_model(name), text(2, 20)
    near(model(inputs[:, :8]), model(inputs)[:, :8])


@parametrized
@torch.no_grad()
def test_a_memory_of_segments_equals_one_pass(name):
    model, inputs, memory = make_model(name), text(2, 18), SegmentMemory(18)
    parts = [model(part, context=memory) for part in inputs.split(6, 1)]
    near(torch.cat(parts, 1), model(inputs))


@parametrized
def test_recomputing_activations_changes_no_gradient(name):
    inputs, gradients = text(1, 7), []
    for recomputes in (False, True):
        model = make_model(name).train()
        if recomputes:
            enable_activation_checkpointing(model)
        model(inputs).square().mean().backward()
        gradients.append({key: one.grad for key, one in model.named_parameters()})
    for key, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], gradient, msg=key)


def test_a_model_with_mixed_layers_can_be_pickled():
    model, inputs = make_model("windows"), text(1, 5)
    assert torch.equal(pickle.loads(pickle.dumps(model))(inputs), model(inputs))


@torch.no_grad()
def test_types_that_change_nothing_give_the_uniform_model():
    inputs = text(2, 12)
    for names in (("rope",), ("learned", "alibi"), ("rope_mixed",), ("tape",)):
        models = []
        for types in (None, {"one": {}, "two": {"window": 12}}):
            torch.manual_seed(3)
            pattern = None if types is None else ["one", "two"]
            models.append(decoder(*names, layer_types=types, layer_pattern=pattern))
        assert list(models[0].state_dict()) == list(models[1].state_dict())
        assert torch.equal(models[0](inputs), models[1](inputs))


def make_vit(*names, **options):
    options = {"dim": 16, "depth": 2, "heads": 4, "patch_size": 4, **options}
    return lively(ViT(ImageSpec(1, 16, 12, 3), encoding=links(*names), **options))


def make_point_encoder(*names, **options):
    options = {"dim": 16, "depth": 2, "heads": 2, **options}
    return lively(PointEncoder(PointSpec(2, 1, 9, classes=3), encoding=links(*names), **options))


# by kind of model: two encodings, and inputs
KINDS = {
    "encoder": (encoder, ("rope", "t5"), (text(),)),
    "vit": (make_vit, ("rope_axial", "lookhere"), (torch.randn(2, 1, 16, 12),)),
    "point_encoder": (
        make_point_encoder,
        ("rope", "alibi"),
        (torch.randn(2, 9, 2), torch.rand(2, 9, 1) * 9),
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_each_layer_of_every_kind_of_model_has_the_encoding_of_its_type(kind):
    make, names, inputs = KINDS[kind]
    types = {"one": {}, "two": {"encoding": links(names[1])}}
    model = make(names[0], depth=4, layer_types=types, layer_pattern=["one", "two"])
    uniform = {name: make(name, depth=4) for name in names}

    tokens = model.tokens(*inputs)
    for number, block in enumerate(model.blocks):
        chain = uniform[names[number % 2]].chains[number]
        chain.load_state_dict(model.chains[number].state_dict())
        tokens = block(chain.embed(tokens), chain, Context())
    torch.testing.assert_close(model.run_blocks(model.tokens(*inputs)).x, model.norm(tokens.x))
    others = [one.run_blocks(one.tokens(*inputs)).x for one in uniform.values()]
    assert all((tokens.x - other).abs().max() > 1e-3 for other in others)


@torch.no_grad()
@pytest.mark.parametrize("name", ["windows", "rope and none", "two bases", "scores"])
def test_documents_and_padding_of_an_encoder_are_apart(name):
    model, inputs = make_model(name, encoder), text(1, 20)
    documents = torch.tensor([[-1] * 3 + [0] * 6 + [1] * 11])
    apart = [model(part) for part in inputs[:, 3:].split((6, 11), 1)]
    near(model(inputs, documents)[:, 3:], torch.cat(apart, 1))


@torch.no_grad()
def test_layers_with_other_options_have_tables_of_their_own():
    """Tables of several rotations have one name, and each layer must read its own."""

    def make(shared):
        own = [
            {"encoding": {"rope": lambda d, b=b: zoo.encoding("rope", d, base=b, shared=shared)}}
            for b in (10.0, 1000.0)
        ]
        torch.manual_seed(0)
        types = {"one": own[0], "two": own[1]}
        return decoder("none", depth=4, layer_types=types, layer_pattern=["one", "two"])

    inputs = text(2, 12)
    assert torch.equal(make(True)(inputs), make(False)(inputs))


@torch.no_grad()
def test_what_is_added_to_the_input_belongs_to_all_layers():
    types = {"one": {"encoding": links("fox")}, "two": {"encoding": links("none")}}
    model = decoder("sinusoidal", "rope", layer_types=types, layer_pattern=["one", "two"])
    assert [[link.name for link in chain] for chain in model.chains] == [
        ["sinusoidal", "fox"],
        ["sinusoidal", "none"],
    ]
    assert not torch.allclose(model(text()[:, [1, 0, 2]]), model(text())[:, [1, 0, 2]])


def test_names_of_parameters_are_those_of_uniform_models():
    def name_parameters(first, second, pattern, encoding="none"):
        types = {"one": {"encoding": first}, "two": {"encoding": second}}
        model = decoder(encoding, depth=4, layer_types=types, layer_pattern=pattern)
        return [name for name, _ in model.named_parameters() if name.startswith("encoding")]

    other = {"t5": lambda dims: zoo.encoding("t5", dims, num_buckets=8)}
    # one module for all its layers, one for each of them, and two that share a name
    assert name_parameters(links("t5"), links("none"), ["one", "two"]) == ["encoding.t5.table"]
    assert name_parameters(links("fox"), links("none"), ["two", "one"]) == [
        f"encoding.fox.{layer}.gate.{kind}" for layer in (1, 3) for kind in ("weight", "bias")
    ]
    names = name_parameters(links("t5"), other, ["one", "two"])
    assert names == ["encoding.t5.0.table", "encoding.t5.1.table"]


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_an_encoding_declares_whether_it_adds_to_the_input(name):
    cls = zoo.encoding_class(name)
    dims = zoo.Dims(96, 4, axes=min(cls.axes), length=3, depth=2)
    one = zoo.encoding(name, dims)
    pos = torch.cartesian_prod(*[torch.arange(3.0)] * dims.axes).view(-1, dims.axes)
    tokens = Tokens.at(torch.randn(1, len(pos), 96), pos)
    tokens = tokens.replace(grid_size=torch.full((1, 1, dims.axes), 3.0))
    assert (one.embed(tokens).x is not tokens.x) == one.adds_to_input


def test_a_table_of_each_layer_may_belong_to_a_type():
    own = {"learned": lambda dims: zoo.encoding("learned", dims, shared=False)}
    types = {"one": {"encoding": own}, "two": {}}
    model = decoder("rope", layer_types=types, layer_pattern=["one", "two"])
    assert [link.name for link in list_links(model.chains)] == ["learned", "rope"]


@pytest.mark.parametrize(
    ("make", "name"),
    [*((decoder, name) for name in ("learned", "sinusoidal", "cape", "tape")), (encoder, "cape")],
)
def test_what_belongs_to_the_model_is_refused_in_a_type(make, name):
    types = {"one": {"encoding": links(name)}, "two": {}}
    with pytest.raises(OptionError, match=r"list it in model\.encoding") as caught:
        make("none", layer_types=types, layer_pattern=["one", "two"])
    assert caught.value.key == "layer_types.one.encoding"


def test_what_passes_from_layer_to_layer_needs_all_layers():
    types = {"one": {"encoding": links("none")}, "two": {}}
    with pytest.raises(OptionError, match="all layers need it"):
        decoder("tape", layer_types=types, layer_pattern=["one", "two"])


def test_an_encoding_that_hides_what_it_adds_is_found_when_it_runs():
    class Hidden(zoo.Encoding):
        name = "hidden"

        def embed(self, tokens):
            return tokens.replace(x=tokens.x + 1)

    types = {"one": {"encoding": {"hidden": Hidden}}, "two": {}}
    model = decoder("none", layer_types=types, layer_pattern=["one", "two"])
    with pytest.raises(OptionError, match="adds_to_input"):
        model(text())


def test_a_pattern_is_repeated_over_the_depth():
    types = {"local": {}, "global": {}}
    assert expand_pattern(types, ["local*2", "global"], 7) == (
        *("local", "local", "global") * 2,
        "local",
    )
    assert [(name, [*run]) for name, run in list_runs(("a", "a", "b", "a"))] == [
        ("a", [0, 1]),
        ("b", [2]),
        ("a", [3]),
    ]


RECIPE = """extends: lm_rope
model:
  depth: 4
  layer_types:
    local: {window: 4}
    global: {encoding: none}
  layer_pattern: [local, global]
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "words"),
    [
        ("[local, global]", "[local, globl]", 7, "layer_pattern.1", "did you mean global"),
        ("[local, global]", "[local*9, global]", 7, "layer_pattern", "longer than the depth"),
        ("[local, global]", "[local]", 6, "layer_types.global", "not in the pattern"),
        ("[local, global]", "[local*0, global]", 7, "layer_pattern.0", "no entry"),
        ("  layer_pattern: [local, global]\n", "", 4, "layer_types", "write layer_pattern"),
        ("window: 4", "widow: 4", 5, "layer_types.local.widow", "did you mean"),
        ("window: 4", "window: 0", 5, "layer_types.local.window", "at least 1"),
        ("window: 4", "encoding: learned", 5, "layer_types.local.encoding", "model.encoding"),
        ("window: 4", "encoding: dape", 5, "layer_types.local.encoding", "dape"),
        ("window: 4", "encoding: [rope, xpos]", 5, "layer_types.local.encoding", "one of them"),
        ("window: 4", "encoding: nope", 5, "layer_types.local.encoding.0.name", "did you mean"),
        ("local: {window: 4}", "local: 4", 5, "layer_types.local", "window, or {} for none"),
        ("window: 4", "sinks: 1", 5, "layer_types.local.sinks", "write true"),
        ("window: 4", "window: true", 5, "layer_types.local.window", "integer or null, got true"),
        ("window: 4", "window: false", 5, "layer_types.local.window", "write null"),
        (
            "window: 4",
            "encoding: lookhere",
            5,
            "layer_types.local.encoding.0.name",
            "2 axes, not 1",
        ),
        ("window: 4", "mixer: short_con", 5, "layer_types.local.mixer.name", "did you mean"),
        ("window: 4", "mixer: null", 5, "layer_types.local.mixer", "remove the key"),
        (
            "window: 4",
            "mixer: {name: gated_delta, hads: 2}",
            5,
            "layer_types.local.mixer.hads",
            "mixer.heads?",
        ),
        (
            "window: 4",
            "mixer: {name: gated_delta, heads: 3}",
            5,
            "layer_types.local.mixer.heads",
            "write key_dim",
        ),
        ("window: 4", "mixer: short_conv, window: 4", 5, "layer_types.local.window", "no scores"),
        (
            "window: 4",
            "mixer: short_conv, encoding: none",
            5,
            "layer_types.local.encoding",
            "uses no encoding",
        ),
        ("window: 4", "dim: 4", 5, "layer_types.local.dim", "did you mean model.dim"),
        ("[local, global]", "local", 7, "layer_pattern", "write ['local']"),
        ("local", "name", 5, "layer_types.name", "cannot name"),
        ("local", "a-b", 5, "layer_types.a-b", "cannot name"),
    ],
)
def test_a_wrong_key_is_named_with_its_file_and_line(tmp_path, old, new, line, key, words):
    from zoo.run.preflight import build_experiment

    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE.replace(old, new))
    with pytest.raises(RecipeError) as caught:
        build_experiment(zoo.load_recipe(path))
    (issue,) = caught.value.issues
    assert (issue.key, issue.origin) == (f"model.{key}", f"{path}:{line}")
    assert words in str(issue)


MIXED = {"local": {"mixer": "gated_delta"}, "global": {}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("window", 4),
        ("softcap", 2.0),
        ("sinks", True),
        ("temperature.floor", 4),
        ("backend", "sdpa"),
        ("block.attention_dropout", 0.1),
    ],
)
def test_options_of_attention_are_refused_where_no_layer_has_it(key, value):
    from zoo.run.preflight import build_experiment

    edits = {"model.layer_types": {"only": {"mixer": "linear"}}, "model.layer_pattern": ["only"]}
    with pytest.raises(RecipeError, match="no layer has softmax attention") as caught:
        build_experiment(zoo.load_recipe("lm_rope", {**edits, f"model.{key}": value}))
    (issue,) = caught.value.issues
    assert issue.key.startswith(f"model.{key.partition('.')[0]}")


@pytest.mark.parametrize(
    ("recipe", "changes", "key", "words"),
    [
        ("vit_none", {}, "local.window", "known are encoding, softcap, sinks"),
        ("mlm_t5", {"layer_types.local": {"mixer": "short_conv"}}, "local.mixer", "causal mask"),
        ("vit_none", {"layer_types": MIXED}, "local.mixer", "causal mask"),
        ("mlm_t5", {"layer_types.local": {"encoding": "fox"}}, "local.encoding", "causal mask"),
        ("lm_rope", {"layer_types.globl.window": 2}, "globl", "did you mean global? Otherwise add"),
    ],
)
def test_a_type_that_does_not_suit_the_model_is_refused(recipe, changes, key, words):
    from zoo.run.preflight import build_experiment

    types = {"local": {"window": 4}, "global": {}}
    edits = {"layer_types": types, "layer_pattern": ["local", "global"], **changes}
    with pytest.raises(RecipeError, match=re.escape(words)) as caught:
        build_experiment(zoo.load_recipe(recipe, {f"model.{one}": edits[one] for one in edits}))
    (issue,) = caught.value.issues
    assert issue.key.startswith(f"model.layer_types.{key}")


@pytest.mark.parametrize("name", ["timm", "transformers"])
def test_layers_of_other_libraries_are_changed_by_equip(name, tmp_path):
    path = tmp_path / "mine.yaml"
    recipe = "vit_none" if name == "timm" else "lm_rope"
    where = "arch: x" if name == "timm" else "path: x"
    lines = [f"extends: {recipe}", "model:", f"  name: {name}", "  encoding: none", f"  {where}"]
    types = ["  layer_types: {local: {encoding: none}}", "  layer_pattern: [local]"]
    path.write_text("\n".join(lines + types))
    with pytest.raises(RecipeError) as caught:
        zoo.load_recipe(path)
    issues = caught.value.issues
    assert [issue.key for issue in issues] == ["model.layer_types", "model.layer_pattern"]
    assert [issue.origin for issue in issues] == [f"{path}:6", f"{path}:7"]
    assert all("zoo.equip(model, encoding, layers=[0, 2])" in str(issue) for issue in issues)


def test_a_recipe_with_layer_types_reads_back_what_it_writes(tmp_path):
    from zoo.config import from_plain

    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    recipe = zoo.load_recipe(path, {"model.layer_types.local.encoding": "fox"})
    assert recipe.encodings == ("rope", "fox", "none")
    assert from_plain(recipe.plain(), origin="", name="mine") == recipe


def test_null_in_a_type_takes_back_what_the_model_has(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        RECIPE.replace("global: {", "global: {window: null, ").replace("{window: 4}", "")
    )
    model = zoo.build_model(zoo.load_recipe(path, {"model.window": 7, "model.dim": 16}))
    assert [block.attn.window for block in model.blocks] == [7, None, 7, None]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("lm_gemma", "model.encoding", "alibi"),
        ("lm_gemma", "model.encoding.base", 5),
        ("lm_sssl", "model.window", 16),
    ],
)
def test_an_override_that_reaches_no_layer_is_refused(name, key, value, tmp_path):
    with pytest.raises(RecipeError, match=r"argument: model.*no layer has it, since each type"):
        zoo.load_recipe(name, {key: value})
    section, _, word = key.removeprefix("model.").partition(".")
    if word:
        return
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {name}\nmodel: {{{section}: {value}}}\n")
    with pytest.raises(RecipeError, match=r"mine.yaml:2: model.*no layer has it"):
        zoo.load_recipe(path)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("lm_irope", {"model.encoding": "alibi"}),
        ("lm_gemma", {"model.encoding": "sinusoidal"}),
        ("lm_gemma", {"model.encoding": "rope", "model.layer_types.local.encoding": "none"}),
        ("lm_gemma", {"model.layer_types.local.encoding": "none"}),
    ],
)
def test_an_override_that_reaches_something_is_not_refused(name, changes):
    recipe = zoo.load_recipe(name, changes)
    assert changes.popitem()[1] in recipe.encodings


def test_a_comparison_that_would_change_no_layer_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="no layer has it"):
        zoo.compare("lm_gemma", encodings=["alibi", "none"])


HYBRID = {
    "model.depth": 4,
    "model.window": 8,
    "model.layer_types": {
        "linear": {"mixer": {"name": "gated_delta", "heads": 2, "decay": "channel"}},
        "full": {"encoding": "none"},
    },
    "model.layer_pattern": ["linear*3", "full"],
}


def test_a_mixer_takes_the_place_of_attention():
    model = zoo.build_model(zoo.load_recipe("lm_rope", HYBRID))
    parts = [type(block.mixer or block.attn) for block in model.blocks]
    assert parts == [GatedDelta] * 3 + [SelfAttention]
    assert [[link.name for link in chain] for chain in model.chains] == [[], [], [], ["none"]]
    assert model.blocks[3].attn.window == 8
    # other weights are those of the branches, GPT-2's
    ends = [block.mixer.out.weight.std() for block in list(model.blocks)[:3]]
    assert all(abs(std - 0.02 / 8**0.5) < 1e-3 for std in ends)
    assert abs(model.blocks[0].mixer.query.weight.std() - 0.02) < 1e-3
    pickle.loads(pickle.dumps(model.blocks[0]))


def test_a_recipe_with_a_mixer_reads_back_what_it_writes():
    from zoo.config import from_plain

    recipe = zoo.load_recipe("lm_rope", HYBRID)
    assert recipe.plain()["model"]["layer_types"]["linear"]["mixer"]["decay"] == "channel"
    assert from_plain(recipe.plain(), origin="", name="lm_rope") == recipe
    changed = zoo.load_recipe("lm_rope", {**HYBRID, "model.layer_types.linear.mixer.conv": 2})
    assert changed.model.options["layer_types"]["linear"]["mixer"].options["conv"] == 2


def test_an_encoding_that_all_other_layers_replace_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE.replace("window: 4", "mixer: short_conv"))
    with pytest.raises(RecipeError, match=r"its own encoding or a mixer; write .*global\.encoding"):
        zoo.load_recipe(path, {"model.encoding": "alibi"})
    path.write_text(path.read_text().replace("{encoding: none}", "{}"))
    assert zoo.load_recipe(path, {"model.encoding": "alibi"}).encodings == ("alibi",)


@pytest.mark.parametrize(
    ("mixer", "is_read"),
    [("linear", True), ("short_conv", False), ("linear, encoding: rope", False)],
)
def test_an_encoding_of_the_model_may_reach_only_a_mixer(tmp_path, mixer, is_read):
    path = tmp_path / "mixed.yaml"
    types = f"{{mixed: {{mixer: {mixer}}}, full: {{encoding: none}}}}"
    pattern = "layer_pattern: [mixed, full]"
    path.write_text(f"extends: lm_rope\nmodel:\n  layer_types: {types}\n  {pattern}\n")
    if is_read:
        assert zoo.load_recipe(path, {"model.encoding": "xpos"}).encodings == ("xpos", "none")
        return
    with pytest.raises(RecipeError, match="no layer has it"):
        zoo.load_recipe(path, {"model.encoding": "xpos"})


def test_a_mixer_that_uses_encodings_gets_those_of_its_layer():
    class Reader(Mixer):
        name, uses_encodings = "reader", True

        def __init__(self, dims):
            super().__init__(dims)
            self.end = torch.nn.Linear(dims.dim, dims.dim)

        output_projection = property(lambda self: self.end)

        def mix(self, stream, past):
            return self.end(stream.x), {}

    def make(dims, _):
        return Reader(dims)

    types = {"one": {"mixer": make, "encoding": links("alibi")}, "two": {"mixer": make}}
    model = decoder("rope", layer_types=types, layer_pattern=["one", "two"])
    assert [[link.name for link in chain] for chain in model.chains] == [["alibi"], ["rope"]]
