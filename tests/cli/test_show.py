"""`zoo show ENCODING`: what it costs in sizes and options of one's own, its time, its picture, and what is refused."""

import json
import os
import re
import time
from functools import cache
from pathlib import Path
from statistics import median

import pytest
from PIL import Image
from torch import nn

from zoo import encoding_class, encoding_names, registry
from zoo.benchmark.recorded_layers import (
    describe_recorded_layers,
    describe_recorded_memory,
    read_recorded_layers,
)
from zoo.benchmark.result import compute_quartiles
from zoo.cli import describe
from zoo.config.command_line import parse_overrides
from zoo.data.tables import open_table
from zoo.encodings.common.chains import build_shortest_chain, format_chain
from zoo.run.load import load_experiment

USERS = cache(describe.list_users)


@pytest.fixture(autouse=True)
def _recipes_read_once(monkeypatch):
    """Every encoding is shown here: ask only once which recipes name them."""
    monkeypatch.setattr(describe, "list_users", USERS)


@pytest.mark.parametrize("name", encoding_names())
def test_an_encoding_is_shown(name, zoo):
    code, out, _ = zoo("show", name)
    assert code == 0
    for word in ("options", "facts", "axes", "coordinates"):
        assert f"\n{word}" in out or f"  {word}" in out


def test_a_recipe_whose_data_are_on_the_hub_is_shown_without_a_network(zoo, monkeypatch):
    monkeypatch.setattr(open_table, "_make_builder", refuse_connection)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    code, out, _ = zoo("show", "lm_alibi_wikitext103")
    assert code == 0
    assert out.startswith("# not on this machine: hub:Salesforce/wikitext:wikitext-103-raw-v1, ")
    assert "\n# lm_alibi_wikitext103, resolved\n" in out
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def refuse_connection(*_):
    raise ConnectionError("offline")


def test_a_recipe_is_shown_before_there_is_data(zoo):
    code, out, _ = zoo("show", "vit_s16_comrope_imagenet")
    assert code == 0
    assert "# data.path=FOLDER: set it to the location of your data" in out
    assert re.search(r"memory: \S+ GB of each GPU by calculation", out)
    # classes that are read from the data cannot be told
    code, _, error = zoo("show", "vit_s16_comrope_imagenet", "data.classes=null")
    assert code == 2
    assert "data.path: missing: set it to the location of your images" in error


def test_recipes_that_name_it_are_told(zoo):
    _, out, _ = zoo("show", "comrope_ld")
    assert re.search(r"^recipes\n(  \w+\n)*  vit_comrope\n", out, re.MULTILINE)


def test_parameters_are_those_of_the_sizes_and_options(zoo):
    code, out, _ = zoo("show", "liere", "dim=48", "heads=4", "depth=3", "length=[7,7]", "block=4")
    assert code == 0
    assert "cost, for dim 48, 4 heads, depth 3, 7 x 7 tokens" in out
    assert re.search(
        r"parameters +432 \(144 in each of 3 layers\)", out
    )  # 2 axes, 4 heads, 3 blocks, 6 entries


@pytest.mark.parametrize(
    ("words", "yes"),
    [
        (("fire", "axes=1", "length=8"), False),
        (("fire", "axes=2", "length=4"), True),
        (("cape", "axes=1", "length=8"), False),
        (("cape", "centre=true", "axes=1", "length=8"), True),
    ],
)
def test_facts_are_those_of_the_sizes_and_options(words, yes, zoo):
    _, out, _ = zoo("show", *words, "dim=16", "heads=2")
    (line,) = [line for line in out.splitlines() if "shift_invariant" in line]
    assert (" yes" in line) == yes


def test_what_layers_share_is_counted_once(zoo):
    _, out, _ = zoo("show", "learned", "dim=16", "heads=2", "length=10")
    assert re.search(r"parameters +160 \(for all layers\)", out)
    _, out, _ = zoo("show", "learned", "dim=16", "heads=2", "length=10", "shared=false", "depth=2")
    assert re.search(r"parameters +320 \(160 in each of 2 layers\)", out)


def test_the_last_layer_may_have_fewer(zoo):
    _, out, _ = zoo("show", "tape", "dim=16", "heads=2", "depth=3")
    assert re.search(r"parameters +\d+ \(0 to \d+ in each of 3 layers\)", out)


def test_the_time_of_a_layer_is_the_recorded_one(zoo, monkeypatch):
    """Nothing is measured anew, which would differ from run to run and from the site."""
    monkeypatch.setattr(time, "perf_counter", lambda: pytest.fail("a time was measured"))
    first, again = (zoo("show", "rope")[1] for _ in range(2))
    assert first == again
    block = first.split("time of a layer")[1]
    for result in read_recorded_layers():
        rows = [row for row in result.rows if row.name == "rope"]
        for row in rows:
            low, high = compute_quartiles(row.ratios)
            expected = f"{median(row.ratios):.2f} ({low:.2f} to {high:.2f}); width "
            assert re.search(rf"{result.shape['name']} +{re.escape(expected)}", block)
            assert f"{len(row.ratios)} rounds" in block
            assert result.machine["processor"] in block
            assert f"torch {result.machine['torch']}" in block
    page = Path(__file__).parents[2] / "docs" / "encodings" / "rope.md"
    for text in (describe_recorded_layers("rope") | describe_recorded_memory("rope")).values():
        assert text in block
        assert text in page.read_text()


def test_every_encoding_has_a_recorded_time():
    for name in encoding_names():
        assert describe_recorded_memory(name)
        cls = encoding_class(name)
        found = describe_recorded_layers(format_chain(build_shortest_chain(cls)))
        # layers of texts and of images are timed
        if {1, 2} & {*cls.axes}:
            assert "recorded on" in found
            assert len(found) > 1
        else:
            assert found == {}
    assert describe_recorded_layers("nothing such") == {}
    assert describe_recorded_memory("nothing such") == {}


def test_a_list_is_shown_where_one_is_needed(zoo):
    code, out, _ = zoo("show", "dape", "dim=16", "heads=2", "length=8", "hidden=3")
    assert code == 0
    assert "attention on cpu   chunked (transform_scores needs whole rows of scores)" in out


def test_a_picture_is_drawn_where_it_is_named(zoo, tmp_path):
    _, out, _ = zoo("show", "kerple", "dim=16", "heads=2", "length=8", "picture=drawn.png")
    assert out.endswith("picture: drawn.png\n")
    assert [path.name for path in tmp_path.iterdir()] == ["drawn.png"]
    with Image.open(tmp_path / "drawn.png") as picture:
        assert picture.width > 800


def test_no_picture_where_none_is_named(zoo, tmp_path):
    assert "picture: " not in zoo("show", "rope")[1]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("rope", ("dmi=3",), ["dmi", "did you mean dim?"]),
        ("rope", ("bsae=3", "depth=x"), ["did you mean base?", "depth", "expected an integer"]),
        ("rope", ("dim=100",), ["heads: dim 100 is not divisible by heads 8"]),
        ("rope", ("axes=2",), ["rope takes 1 axis, not 2"]),
        ("rope", ("length=[4,4]",), ["rope takes 1 axis, not 2"]),
        ("rope", ("length=[]",), ["length: an empty list"]),
        ("learned", ("length=[2000,2000]",), ["4,000,000 tokens are more than"]),
        ("rope", ("picture=nowhere/rope.png",), ["picture: there is no folder nowhere"]),
        ("rope", ("picture=.",), ["is a folder"]),
        ("rope", ("depth",), ["depth", "write key=value"]),
        ("rope", ("scaling.rule=yarn", "scaling.factro=2"), ["did you mean scaling.factor?"]),
    ],
)
def test_what_cannot_be_shown_is_refused_in_words(name, words, message, zoo, tmp_path):
    code, out, error = zoo("show", name, *words)
    assert code == 2
    assert not out
    assert all(word in error for word in message), error
    assert not [*tmp_path.iterdir()]


def test_options_within_options_are_set(zoo):
    code, _, error = zoo("show", "rope", "scaling.rule=linear", "scaling.factor=4.0")
    assert (code, error) == (0, "")


def test_operations_of_a_forward_pass_are_those_of_its_matrices(zoo):
    small = ["model.depth=1", "model.dim=8", "model.heads=1", "model.encoding=none"]
    experiment = load_experiment("vit_none", parse_overrides(small))
    found = 0
    for module in experiment.meta_model.modules():
        if isinstance(module, nn.Linear):
            tokens = 1 if module.out_features == 10 else 16  # the head reads their mean
            found += 2 * tokens * module.weight.numel()
    patches = 2 * 16 * experiment.meta_model.patch_embed.weight.numel()
    attention = 2 * 2 * 16 * 16 * 8  # scores, and sums of values
    assert experiment.flops == found + patches + attention
    assert "# FLOPs per sample: " in zoo("show", "vit_none", *small)[1]


def test_the_schema_is_printed_as_json(zoo):
    code, out, _ = zoo("show", "schema")
    assert code == 0
    assert json.loads(out)["title"] == "A recipe of zoo"


def test_a_pattern_of_layers_is_drawn(zoo):
    code, out, _ = zoo("show", "lm_irope", "model.depth=8", "model.dim=16", "model.heads=2")
    assert code == 0
    assert "#   local   ###.###.  rope, window 32, no temperature" in out
    assert "#   global  ...#...#  none, no window, temperature (floor 128, scale 0.1" in out
    assert "types of layers" not in zoo("show", "lm_rope", "model.dim=16", "model.heads=2")[1]


HYBRID = ("lm_hybrid", "model.dim=16", "model.heads=2", "model.encoding=[rope,sinusoidal]")


def test_keys_of_the_model_that_a_mixer_cannot_use_are_named(zoo):
    code, out, _ = zoo("show", *HYBRID, "model.window=8", "model.sinks=true")
    assert code == 0
    unused = "rope, window and sinks of the model do not reach it"
    assert f"#   linear  ###.  gated_delta; {unused}\n#   full    ...#  rope + sinusoidal\n" in out
    assert "layers 0 to 2 on cpu: gated_delta (a state in place of attention)" in out
    # 2 heads of 8 by 8 channels, and 3 inputs of 48 channels
    assert f"layers 0 to 2: a state, {4 * (2 * 64 + 3 * 48) / 1e3:.2f} kB each\nlayer 3: 7" in out
    assert "do not reach" not in zoo("show", "lm_hybrid", "model.dim=16", "model.heads=2")[1]


@pytest.mark.parametrize("name", registry.names("mixers"))
def test_a_mixer_is_shown(name, zoo):
    code, out, _ = zoo("show", name, "dim=64")
    assert code == 0
    for word in ("formula", "options", "facts", "recipes", "cost of a layer, for dim 64"):
        assert f"\n{word}\n" in out
    assert "state of a sequence" in out
    assert zoo("show", name, "dimm=64")[0] == 2


def test_options_of_a_mixer_change_its_cost(zoo):
    costs = [
        re.findall(r"parameters +([\d,]+)", zoo("show", "gated_delta", "dim=64", *words)[1])[-1]
        for words in ((), ("decay=channel",), ("gate=null",), ("heads=4",))
    ]
    assert len({*costs}) == 4
    code, _, error = zoo("show", "gated_delta", "heads=5", "dim=64")
    assert code == 2
    assert "heads: dim 64 is not divisible by 5 heads; write key_dim" in error


def test_what_a_window_hides_is_neither_counted_nor_cached(zoo):
    """One sample of lm_gemma: 128 tokens, 4 heads of 32 channels that share 2 keys and values."""
    windowed = load_experiment("lm_gemma", ())
    full = load_experiment("lm_gemma", parse_overrides(["model.layer_types.local.window=128"]))
    assert full.flops - windowed.flops == 5 * 4 * 4 * 32 * 128 * (128 - 32)

    out = zoo("show", "lm_gemma")[1]
    layer = 2 * 2 * 32 * 4  # bytes of a token
    lines = [
        f"# KV cache of a sample: {(5 * 31 + 128) * layer / 1e3:.0f} kB in 32 bits",
        f"layers 0 to 4: 31 tokens, {31 * layer / 1e3:.1f} kB each",
        f"layer 5: 128 tokens, {128 * layer / 1e3:.1f} kB",
    ]
    assert "\n".join(lines) + "\n" in out


def test_an_encoder_counts_keys_on_both_sides_of_a_query(zoo):
    words = ["model.window={}", "model.depth=1", "model.dim=8", "model.heads=1"]
    one, other = (
        load_experiment("mlm_t5", parse_overrides([word.format(window) for word in words]))
        for window in (4, 5)
    )
    tokens = one.spec.length + bool(one.recipe.model.options["cls_token"])
    assert other.flops - one.flops == 2 * 4 * 8 * tokens
    assert "KV cache" not in zoo("show", "mlm_t5", *[word.format(4) for word in words])[1]
