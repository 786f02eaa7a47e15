"""zoo's own models for a shape: made alike, planned, weighed and continued."""

from dataclasses import replace

import pytest
import torch

from zoo.benchmark.measures import (
    CacheMeasure,
    ContextMeasure,
    DecodeMeasure,
    LayerMeasure,
    MemoryMeasure,
    TrainingStep,
    TrainMeasure,
)
from zoo.benchmark.models import (
    build_all_contenders,
    build_contender,
    build_mixed_contender,
    choose_contenders,
    load_layers,
)
from zoo.benchmark.protocol import SHAPES, Workload, find_refusal
from zoo.errors import RecipeError
from zoo.options import Choice

TEXT, IMAGE = Workload(shape=SHAPES["lm_toy"]), Workload(shape=SHAPES["vit_toy"], jitter=0.25)


def make_contender(name, **options):
    return build_contender([Choice(name, options)])


def test_every_encoding_runs_on_a_text_or_an_image():
    # four heads, which lookhere needs
    text, image = (
        replace(one, shape=replace(one.shape, depth=1, heads=4)) for one in (TEXT, IMAGE)
    )
    refused = {
        one.name
        for one in build_all_contenders()
        if find_refusal(one, [text]) and find_refusal(one, [image])
    }
    # no data source has its three positions
    assert refused == {"mrope"}


@pytest.mark.parametrize("workload", [TEXT, IMAGE], ids=["text", "image"])
def test_a_layer_is_measured_of_every_encoding_that_a_model_of_the_kind_has(workload):
    small = replace(workload, shape=replace(workload.shape, depth=1, heads=4))
    for one in build_all_contenders():
        if not find_refusal(one, [small]):
            layer = one.layer(small)
            dims = layer.layer.dims
            assert layer(torch.zeros(1, dims.tokens, dims.dim)).isfinite().all(), one.name


def test_options_are_part_of_the_name():
    assert (
        build_contender([Choice("alibi"), Choice("liere", {"block": 4})]).name
        == "alibi+liere(block=4)"
    )


def test_the_reference_is_measured_with_options_of_scores():
    short = TEXT.with_length(32)
    found, excluded = choose_contenders([], None, short, [32], ["sinks", "softcap", "temperature"])
    names = ["rope", "rope with sinks", "rope with softcap", "rope with temperature"]
    assert [one.name for one in found] == names
    assert not excluded
    attentions = [one.make(short).blocks[0].attn for one in found]
    assert [one.sinks is not None for one in attentions] == [False, True, False, False]
    assert [one.softcap for one in attentions] == [None, None, 50.0, None]
    assert found[1].layer(short).layer.sinks is not None

    found, excluded = choose_contenders([], None, IMAGE, [32], ["sinks", "temperature"])
    assert [one.name for one in found] == ["none", "none with sinks"]
    assert "no order" in excluded["none with temperature"]


def test_layers_of_recipes_are_measured_in_the_sizes_of_the_shape():
    deep = replace(TEXT, shape=replace(TEXT.shape, depth=6))
    recipes = load_layers(["lm_gemma", "lm_irope"])
    found, excluded = choose_contenders([], None, deep, [32], [], recipes)
    assert [one.name for one in found] == ["rope", "layers of lm_gemma", "layers of lm_irope"]
    assert not excluded

    gemma, irope = (one.make(deep) for one in found[1:])
    assert [block.attn.window for block in gemma.blocks] == [32] * 5 + [None]
    assert [[link.name for link in chain] for chain in irope.chains[2:4]] == [["rope"], ["none"]]
    assert [block.attn.temperature is None for block in irope.blocks[2:4]] == [True, False]
    bases = {link.base for chain in gemma.chains for link in chain}
    assert bases == {10_000, 1_000_000}
    # the sizes are those of the shape: no two layers of it share keys and values
    assert gemma.blocks[0].attn.k_proj.out_features == TEXT.shape.dim
    facts = TrainMeasure("tokens").prepare(found[1], deep.with_length(40)).facts
    assert facts.backend == "sdpa (a window, as a mask), sdpa (nothing but q, k and v)"


def test_the_cache_of_windowed_layers_is_smaller():
    deep = replace(TEXT, shape=replace(TEXT.shape, depth=6))
    (recipe,) = load_layers(["lm_gemma"])
    measure = CacheMeasure(contexts=(40,))
    one = 2 * 4 * TEXT.shape.dim  # bytes of a token: a key and a value
    for contender, tokens in (
        (make_contender("rope"), 6 * 40),
        (build_mixed_contender(recipe), 5 * 31 + 40),
    ):
        assert measure.prepare(contender, deep.with_length(40)).run() == tokens * one


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (TEXT, "its pattern is longer than the depth, 2; choose another shape"),
        (IMAGE, "model decoder is not measured with images; choose another shape"),
    ],
)
def test_layers_that_do_not_fit_the_shape_are_refused(setting, words):
    with pytest.raises(RecipeError, match=f"layers of lm_gemma: {words}"):
        choose_contenders([], None, setting, [32], [], load_layers(["lm_gemma"]))


def test_recipes_without_types_of_layers_are_refused():
    with pytest.raises(RecipeError) as caught:
        load_layers(["lm_rope", "lm_gemma", "lm_gemma"])
    first, second = map(str, caught.value.issues)
    assert "layers.0: all layers of lm_rope are alike; name a recipe with" in first
    assert "layers: two recipes are called lm_gemma" in second


def test_a_refusal_says_why():
    assert find_refusal(make_contender("rope"), [IMAGE]).startswith("rope takes 1 axis, not 2")
    assert (
        find_refusal(make_contender("none"), [IMAGE.with_length(33)])
        == "patch_size 8 does not divide images of 33 x 33"
    )


def test_what_torch_cannot_count_is_a_refusal():
    assert "\n" not in find_refusal(make_contender("rope"), [TEXT.with_length(10**30)])
    assert find_refusal(make_contender("rope"), [TEXT.with_length(10**30)]).startswith(
        "TypeError: "
    )


@pytest.mark.parametrize("setting", [TEXT, IMAGE], ids=["text", "image"])
@pytest.mark.parametrize(
    "measure", [TrainMeasure("tokens"), LayerMeasure()], ids=["train", "layer"]
)
def test_a_run_takes_time(measure, setting):
    ready = measure.prepare(make_contender("none"), setting)
    assert ready.run() > 0
    assert ready.facts.parameters > 1000


def test_a_step_trains_and_leaves_no_gradient():
    made = TrainingStep(make_contender("alibi"), TEXT)
    before = [parameter.clone() for parameter in made.model.parameters()]
    made.step()
    assert any(
        (one != other).any() for one, other in zip(before, made.model.parameters(), strict=True)
    )
    assert all(parameter.grad is None for parameter in made.model.parameters())
    assert made.backend.startswith("sdpa (")


def test_memory_is_what_is_held_and_what_a_step_adds():
    ready = MemoryMeasure().prepare(make_contender("none"), TEXT)
    weights = 4 * ready.facts.parameters
    assert ready.run() == ready.run() > 4 * weights  # weights, two moments, gradients
    assert MemoryMeasure().prepare(make_contender("none"), TEXT.with_length(64)).run() > ready.run()


def test_rounded_steps_are_those_of_autocast():
    rounded = replace(TEXT, shape=replace(TEXT.shape, precision="bf16-mixed"))
    assert TrainMeasure("tokens").prepare(make_contender("rope"), rounded).run() > 0


def test_decoding_goes_on_from_a_prompt():
    setting = TEXT.with_length(8)
    assert DecodeMeasure(prompt=8, tokens=3).prepare(make_contender("learned"), setting).run() > 0
    later = ContextMeasure(contexts=(8, 12), steps=2, runs=3).prepare(
        make_contender("learned"), setting
    )
    assert [later.run() > 0 for _ in range(2)] == [True] * 2
