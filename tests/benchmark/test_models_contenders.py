"""zoo's own models for a shape: made alike, planned, weighed and continued."""

from dataclasses import replace

import pytest

from zoo.benchmark.measures import (
    ContextMeasure,
    DecodeMeasure,
    LayerMeasure,
    MemoryMeasure,
    TrainingStep,
    TrainMeasure,
)
from zoo.benchmark.models import build_all_contenders, build_contender, choose_contenders
from zoo.benchmark.protocol import SHAPES, Workload, find_refusal
from zoo.options import Choice

TEXT, IMAGE = Workload(shape=SHAPES["lm_toy"]), Workload(shape=SHAPES["vit_toy"], jitter=0.25)


def make_contender(name, **options):
    return build_contender([Choice(name, options)])


def test_every_encoding_runs_on_a_text_or_an_image():
    # four heads, which lookhere needs
    text, image = (
        replace(one, shape=replace(one.shape, depth=1, heads=4)) for one in (TEXT, IMAGE)
    )
    for one in build_all_contenders():
        assert not (find_refusal(one, [text]) and find_refusal(one, [image])), one.name


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
