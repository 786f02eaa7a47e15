"""What a comparison would take, by its recipes and by the records in neighbouring folders."""

import json
from pathlib import Path

import pytest
from comparisons import plant_records
from tiny import TINY

import zoo
from zoo.api.comparison import compare
from zoo.comparison.estimate import RECORD_BYTES, count_samples
from zoo.config import load

BASE = [
    "vit_comrope",
    *(word for word in TINY if "encoding" not in word and "max_" not in word),
    "diagnostics.every_n_steps=null",
    "encodings=[none,learned]",
]
EPOCHS = ["trainer.max_epochs=2", "trainer.max_steps=null"]
STEPS = ["trainer.max_epochs=null", "trainer.max_steps=50"]
TUNED = ["tune.optim.lr=[1e-3,1e-1,log]", "studies=3", "budget=1", "racing=true"]


def list_files():
    return sorted(path for path in Path().rglob("*"))


def estimate(compared, *words):
    code, out, message = compared(*BASE, *words, "--dry-run", "--json")
    assert code == 0, message
    return json.loads(out)


@pytest.mark.parametrize("words", [EPOCHS, [*STEPS, "to=c"]], ids=str)
def test_a_dry_run_leaves_no_folder(compared, words):
    code, out, message = compared(*BASE, *words, "--dry-run")
    assert code == 0, message
    assert list_files() == []
    assert "which does not exist yet" in out
    assert "time: unknown, since no finished cell in" in out


def test_steps_and_operations_follow_from_the_recipe(compared):
    found = estimate(compared, *STEPS, "seeds=3", "jobs=2")
    assert (found["cells"], found["done"], found["blocks"], found["steps"]) == (6, 0, 3, 300)
    none, learned = found["variants"]
    assert none["steps"] == 150
    assert none["flops"] % (3 * 150) == 0
    assert learned["parameters"] == none["parameters"] + 256
    # weights and two moments in 32 bits
    assert none["checkpoint_bytes"] == 12 * none["parameters"]
    assert found["disk"] == 4 * learned["checkpoint_bytes"] + 6 * RECORD_BYTES
    kept = estimate(compared, *STEPS, "seeds=3", "keep=weights")["disk"]
    assert kept == 6 * (none["checkpoint_bytes"] + learned["checkpoint_bytes"]) + 6 * RECORD_BYTES


def test_trials_are_counted(compared):
    found = estimate(compared, *STEPS, *TUNED)
    assert (found["cells"], found["blocks"], found["budget"]) == (6, 3, 1)
    assert found["steps"] == 6 * 50
    assert found["is_raced"]
    assert found["minutes"] is None
    assert list_files() == []


def test_minutes_come_from_records_of_the_same_settings(compared):
    words = [*EPOCHS, "trainer.num_threads=1", "jobs=1"]
    assert compared(*BASE, *words, "seeds=2", "to=records/a", "minutes=1e-6")[0] == 0
    plant_records("records/a", minutes=3.0, steps=40)
    before = list_files()

    # another seed, twice the length, another learning rate
    longer = ["trainer.max_epochs=4", "optim.lr=0.1", "seeds=[7]", "to=records/b"]
    found = estimate(compared, *words, *longer)
    assert [one["minutes"] for one in found["variants"]] == [6.0, 6.0]
    assert (found["minutes"], found["steps"]) == (12.0, 160)
    assert found["variants"][0]["records"] == ["records/a"]
    assert estimate(compared, *words, *longer, "jobs=2")["minutes"] == 6.0
    out = compared(*BASE, *words, *longer, "--dry-run")[1]
    assert "time: 12.0 minutes, by the records of records/a" in out

    # a model of another size has no record of its time, but an epoch has as many steps
    other = estimate(compared, *words, "model.depth=3", "to=records/b")
    assert other["minutes"] is None
    assert other["variants"][0]["epochs"] == 6
    assert other["variants"][0]["steps"] == 120
    assert other["flops"] > 0
    assert estimate(compared, *words, "data.batch_size=4", "to=records/b")["steps"] is None

    # what is done takes nothing
    out = compared(*BASE, *words, "seeds=2", "to=records/a", "--dry-run")[1]
    assert "4 of them done" in out
    assert out.endswith("time: none, all is done\n")
    assert list_files() == before


def test_a_folder_of_something_else_is_refused(compared):
    Path("c").mkdir()
    Path("c/file").touch()
    code, _, message = compared(*BASE, *STEPS, "to=c", "--dry-run")
    assert code == 2
    assert "c holds other files, file among them" in message
    assert "write --dry-run" in compared(*BASE, *STEPS, "dry_run=true")[2]


def test_the_estimate_takes_what_a_comparison_takes():
    estimated = zoo.estimate_comparison.__wrapped__.__annotations__
    compared = compare.__wrapped__.__annotations__
    assert {name: estimated[name] for name in compared if name != "return"} == {
        name: annotation for name, annotation in compared.items() if name != "return"
    }


@pytest.mark.parametrize(
    ("changes", "samples"),
    [
        ({"data.batch_size": 16}, 16),
        ({"data.batch_size": 8, "trainer.accumulate_grad_batches": 2}, 16),
        ({"data.global_batch_size": 24, "trainer.accumulate_grad_batches": 2}, 24),
    ],
    ids=str,
)
def test_the_samples_of_a_step_are_counted(changes, samples):
    assert count_samples(load("vit_comrope", changes)) == samples
