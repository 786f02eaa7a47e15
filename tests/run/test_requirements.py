"""What a training needs, by calculation, as `zoo show` and the scripts of `zoo launch` state it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tables import corpus

from zoo import load_recipe
from zoo.data.corpus.tokenizer import train_bpe
from zoo.errors import OptionError
from zoo.run.load import load_experiment
from zoo.run.processes import StepSize
from zoo.run.requirements import (
    DECODED_PER_SECOND,
    ENCODED_PER_SECOND,
    PEAK_FLOPS,
    UTILIZATION,
    describe_requirements,
    estimate_requirements,
    explain_unpredicted,
)

SMALL = {
    "model.dim": 16,
    "model.depth": 1,
    "model.heads": 2,
    "trainer.accelerator": "cpu",
    "trainer.devices": 2,
    "trainer.accumulate_grad_batches": 3,
}


@pytest.fixture(scope="module")
def experiments():
    """The same training, with the batch of a process and with that of a step."""
    given = {"own": {"data.batch_size": 8}, "whole": {"data.global_batch_size": 48}}
    return {name: load_experiment("vit_none", {**SMALL, **one}) for name, one in given.items()}


def test_a_global_batch_needs_what_its_parts_need(experiments):
    own, whole = map(estimate_requirements, experiments.values())
    assert (own.batch, own.accumulated, own.processes, own.global_batch) == (8, 3, 2, 48)
    for name in ("batch", "global_batch", "step_flops", "weight_bytes", "activation_bytes"):
        assert getattr(own, name) == getattr(whole, name)
    assert own.step_flops == 3 * experiments["own"].flops * 8 * 3


def test_a_time_is_that_of_the_assumed_rate():
    needs = estimate_requirements(load_experiment("vit_b16_comrope_imagenet", {"data.path": "x"}))
    assert needs.step_seconds == pytest.approx(needs.step_flops / (PEAK_FLOPS * UTILIZATION))
    samples = needs.batch * needs.accumulated
    assert needs.units_per_second * needs.step_seconds == pytest.approx(samples)
    assert any(line.startswith("data: ") for line in describe_requirements(needs))


@pytest.mark.parametrize(
    ("precision", "width", "tokens", "reason"),
    [
        ("32-true", 768, 10**6, "the peak is that of bfloat16, and trainer.precision is 32-true"),
        ("16-mixed", 768, 10**6, "the peak is that of bfloat16"),
        ("bf16-mixed", 96, 10**6, "products of width 96 wait for memory, as all below 236 do"),
        ("bf16-mixed", 0, 10**6, "products of width 0"),
        ("bf16-true", 384, 1024, "1,024 tokens of width 384 do not fill a GPU"),
        ("bf16-mixed", 384, 256 * 197, ""),
        ("bf16-mixed", 768, 16 * 1024, ""),
    ],
)
def test_a_time_is_not_predicted_where_the_assumption_cannot_hold(precision, width, tokens, reason):
    found = explain_unpredicted(precision, width, tokens)
    assert found.startswith(reason) if reason else not found


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_no_small_recipe_has_a_predicted_time(precision):
    """A step takes as long as its kernels take to start: hundreds of times its operations."""
    experiment = load_experiment("vit_comrope", {"trainer.precision": precision})
    needs = estimate_requirements(experiment)
    assert needs.step_seconds is needs.units_per_second is None
    lines = [*describe_requirements(needs)]
    assert [line.partition(":")[0] for line in lines] == ["step", "time", "memory"]
    assert lines[1].startswith("time: no prediction from 4.4e+09 FLOPs a step: ")


def test_it_stays_with_other_processes_and_the_own_batch_does_not(experiments):
    own, whole = (estimate_requirements(one, 4) for one in experiments.values())
    assert (own.batch, own.global_batch) == (8, 96)
    assert (whole.batch, whole.global_batch) == (4, 48)
    assert whole.activation_bytes == own.activation_bytes / 2
    assert next(describe_requirements(own)) == "step: 96 images (8 x 3 accumulated x 4 processes)"
    line = next(describe_requirements(whole))
    kept = "data.global_batch_size for any number of processes"
    assert line == f"step: 48 images (4 x 3 accumulated x 4 processes, {kept})"


def test_processes_that_cannot_share_it_are_refused(experiments):
    with pytest.raises(OptionError, match="48 samples of a step are not divisible by 15"):
        estimate_requirements(experiments["whole"], 5)


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        (0, "each process encodes all text, as fast as 5.2 cores at 800,000 per second and core; "),
        (8, "8 x 8 workers encode all rows once, before training, 19.5 s for 1,000,000,000 tokens"),
    ],
)
def test_the_work_of_a_tokenizer_is_stated(workers, words, tmp_path):
    (tmp_path / "words.json").write_text(train_bpe(["row your boat"], 300).json)
    corpus(tmp_path / "set")
    given = {
        "data.path": str(tmp_path / "set"),
        "data.tokenizer": str(tmp_path / "words.json"),
        "data.tokenizer_workers": workers,
    }
    needs = estimate_requirements(load_experiment("lm_rope_124m", given))
    assert needs.tokenizer_workers == workers
    needs = replace(needs, step_seconds=512 * 1024 / 4.16e6)
    (line,) = [one for one in describe_requirements(needs) if one.startswith("tokenizer: ")]
    assert words in line


def test_the_workers_that_decode_images_are_stated():
    needs = estimate_requirements(load_experiment("vit_b16_comrope_imagenet", {"data.path": "x"}))
    needs = replace(needs, step_seconds=6144 / 8 / 2101)
    (line,) = [one for one in describe_requirements(needs) if one.startswith("workers: ")]
    assert line.startswith("workers: 5 for each process, 40 in all, at 430 JPEGs")
    assert not estimate_requirements(load_experiment("vit_none")).is_decoded


def test_rates_are_those_of_records():
    records = Path(__file__).parents[2] / "docs" / "records"
    images, tokens = (
        json.loads((records / f"{name}.json").read_text())
        for name in ("image_loading", "tokenizing")
    )
    assert images["images_per_second"]["zoo"] == pytest.approx(DECODED_PER_SECOND, rel=0.05)
    encoded = tokens["tokens_per_second"]["encoded"]["median"]
    assert encoded == pytest.approx(ENCODED_PER_SECOND, rel=0.05)


@pytest.mark.parametrize("size", ["batch_size", "global_batch_size"])
def test_a_step_has_as_many_samples_in_a_recipe_as_in_its_plain_data(size):
    samples = 8 if size == "batch_size" else 48
    changes = {f"data.{size}": samples, "trainer.accumulate_grad_batches": 3}
    recipe = load_recipe("lm_rope", changes)
    planned = StepSize.plan(recipe, processes=2)
    assert planned == StepSize(batch=8, accumulated=3, processes=2)
    assert planned == StepSize.read(recipe.plain(), processes=2)
    assert planned.total == 48
