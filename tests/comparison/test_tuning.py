"""Equal tuning: what is asked for, what is tried, and that no test sample decides."""

import os
import signal
import time
from pathlib import Path

import pytest
from comparisons import read_lasting
from tiny import TINY

from zoo import config
from zoo.cli.compare import parse_words
from zoo.comparison import request as request_module
from zoo.comparison.design import ChoiceAxis, Range
from zoo.comparison.request import check_request
from zoo.comparison.results import Comparison, RangeEnd, TrialResult
from zoo.comparison.tuning import TuningRequest, find_best, read_tuned_keys, summarize_tuning
from zoo.config.command_line import parse_overrides
from zoo.data.base import DataModule
from zoo.errors import RecipeError
from zoo.reporting import render
from zoo.run.fit import fit

BASE = [
    "vit_comrope",
    *(word for word in TINY if "encoding" not in word),
    "trainer.num_threads=1",
    "diagnostics.every_n_steps=null",
]
TUNED = [
    *("encodings=[none,learned]", "tune.optim.lr=[1e-4,1e-1,log]", "budget=2"),
    *("seeds=1", "trainer.max_steps=4"),
]
LR = Range("optim.lr", 1e-4, 1e-1, "log")
CHOICE = ChoiceAxis("optim.encoding_lr", (1, 3, 10))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny recipe as a file, which is read faster than a dozen overrides are set."""
    path = tmp_path_factory.mktemp("recipes") / "base.yaml"
    path.write_text(config.load(BASE[0], parse_overrides(BASE[1:])).yaml())
    return str(path)


def read_unchecked(base, words):
    """Read a request without building models, which takes time."""
    given = parse_words(words)
    parts = {key: given.pop(key, None) for key in ("overrides", "encodings", "vary", "tune")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_module, "build_experiment", lambda recipe: None)
        return check_request(base, given=given, **parts)


def test_a_design_begins_with_the_recipe_and_a_larger_one_goes_on_with_a_smaller():
    small = TuningRequest(keys=(LR, CHOICE), budget=4, seed=1000).list_points({})
    large = TuningRequest(keys=(LR, CHOICE), budget=13, seed=1000).list_points({})
    assert small[0] == {}
    assert large[:4] == small
    rates = [one["optim.lr"] for one in large[1:]]
    assert len(set(rates)) == 12
    assert min(rates) < 1e-3 < 1e-2 < max(rates)  # every third of the range is tried
    chosen = [one["optim.encoding_lr"] for one in large[1:]]
    assert all(chosen.count(choice) == 4 for choice in CHOICE.values)


def test_no_trial_repeats_the_recipe_while_other_choices_are_left():
    keys = read_tuned_keys({"optim.lr": [8e-3, 1.6e-2], "model.bias": [True, False]})
    own = {"optim.lr": 0.016, "model.bias": False}
    points = TuningRequest(keys=tuple(keys), budget=4, seed=1000).list_points(own)
    assert points[0] == {}
    tried = {(one["optim.lr"], one["model.bias"]) for one in points[1:]}
    assert tried == {(0.008, True), (0.008, False), (0.016, True)}
    for budget in (5, 1):
        largest = TuningRequest(keys=tuple(keys), budget=budget, seed=1000).list_points(own)
        assert len(largest) == budget


@pytest.mark.parametrize(
    ("tune", "problem"),
    [
        ({"optim.lr": [1e-2, 1e-4, "log"]}, "is empty"),
        ({"optim.lr": [0, 1e-2, "log"]}, "cannot begin at 0"),
        ({"optim.lr": [1e-3, "log"]}, "two numbers and the word"),
        ({"optim.lr": 0.1}, "expected a range or a list"),
        ({"optim.lr": [1, 1]}, "has a choice twice"),
        ({"seed": [1, 2]}, "does not change how a model is trained"),
        ({"encoding_lr": [1, 3], "optim.encoding_lr": [1, 3]}, "tuned twice"),
        ({"optim": ["adamw"], "optim.lr": [1, 2]}, "overlaps"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tune, problem):
    with pytest.raises(RecipeError, match=problem):
        read_tuned_keys(tune)


def test_all_issues_of_a_tuned_comparison_are_told_together(compared):
    code, _, message = compared(
        *BASE,
        "encodings=[none,learned]",
        "tune.optim.lr=[1e-2,1e-4,log]",
        "tune.optim.weight_deccay=[0,0.1]",
        "tuning_seed=0",
        "to=c",
    )
    assert code == 2
    assert "is empty" in message
    assert "tuning needs a budget" in message
    assert not Path("c").exists()

    code, _, message = compared(*BASE, *TUNED, "tuning_seed=0", "to=c")
    assert code == 2
    assert "seed 0 of the trials is also a seed of the results" in message

    wrong = [*TUNED[:1], "tune.optim.weight_deccay=[0,0.1]", *TUNED[2:]]
    code, _, message = compared(*BASE, *wrong, "to=c")
    assert code == 2
    assert "did you mean optim.weight_decay" in message


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["budget=3"], "budget: nothing is tuned; write tune={"),
        (["tuning_seed=3"], "tuning_seed: nothing is tuned"),
        ([TUNED[1]], "budget: tuning needs a budget; write budget=8"),
        (["tune.optim.lr=[1e-3,1e-2]", "budget=4"], "the choices give 3 settings"),
    ],
)
def test_a_budget_goes_with_what_is_tuned(words, problem, base):
    with pytest.raises(RecipeError) as caught:
        read_unchecked(base, ["encodings=[none,learned]", *words])
    assert problem in str(caught.value)


def kill_when_there(begin, folder, pattern, words):
    """Run a comparison, and kill it, and so its cells, when a file appears."""
    process = begin(*words)
    until = time.monotonic() + 120
    while not list(Path(folder).glob(pattern)) and time.monotonic() < until:
        assert os.waitpid(process, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def test_each_variant_gets_its_own_best_trial_and_no_trial_is_tested(
    compared, driver, base, monkeypatch
):
    monkeypatch.setattr(
        request_module, "build_experiment", lambda recipe: None
    )  # the cells do it too
    monkeypatch.setattr(render, "to_png", lambda *_, **__: b"")
    words = [base, *TUNED, "jobs=2"]
    code, out, message = compared(*words, "to=c")
    assert code == 0, message
    assert (
        "2 variants with 2 trials each: 4 trials, then 2 cells; at most 24 training steps"
    ) in message
    found = Comparison.read(Path("c/results.json"))
    trials = sorted(path for path in Path("c/tuning/trials").iterdir() if path.is_dir())
    assert [path.name for path in trials] == [
        f"{name}-trial-{number}-1000" for name in ("learned", "none") for number in range(2)
    ]
    assert not any((path / "end.json").exists() for path in trials)
    assert not any("test/" in (path / "metrics.csv").read_text() for path in trials)

    rates = set()
    for name in ("none", "learned"):
        own = found.tuning.variants[name]
        recipe = config.load(f"c/recipes/{name}-0.yaml")
        assert recipe.optim.options["lr"] == own.settings["optim.lr"]
        assert recipe.trainer.max_steps == 4
        rates.add(tuple(one.settings["optim.lr"] for one in own.trials))
    assert len(rates) == 1  # both tried the same
    assert "## Tuning" in out
    assert "Held equal" in out

    # killed while it is tuned and while its cells train, it ends with the same results
    kill_when_there(driver, "killed", "tuning/trials/*/trial.json", [*words, "to=killed"])
    assert not Path("killed/cells").exists()
    kill_when_there(driver, "killed", "cells/*/start.json", [*words, "to=killed"])
    assert compared(*words, "to=killed")[0] == 0
    once, twice = (read_lasting(folder) for folder in ("c", "killed"))
    assert twice == once


def test_a_trial_reads_no_test_sample(monkeypatch, tmp_path):
    def leak(self):
        raise AssertionError("test samples are read")

    monkeypatch.setattr(DataModule, "test_dataloader", leak)
    recipe = config.load(BASE[0], parse_overrides(BASE[1:]))
    found = fit(recipe, tmp_path / "trial", is_tested=False)
    assert found.best is not None
    with pytest.raises(AssertionError, match="test samples are read"):
        fit(recipe, tmp_path / "tested")


def test_a_planted_better_setting_is_found_and_an_edge_is_named():
    request = TuningRequest(keys=(LR,), budget=6, seed=1000)
    settings = [{"optim.lr": 1e-3, **point} for point in request.list_points({})]
    highest = max(one["optim.lr"] for one in settings)
    flat = [TrialResult(settings=one, value=0.5) for one in settings]
    planted = [
        TrialResult(settings=one, value=0.9 if one["optim.lr"] == highest else 0.5)
        for one in settings
    ]
    trials = {"a": flat, "b": planted}
    found = summarize_tuning(request, "val/accuracy", "high", trials)
    assert found.variants["a"].best == 0  # equal ones: the recipe's own
    assert len(found.variants["a"].near) == 6
    assert found.variants["b"].settings["optim.lr"] == highest
    assert found.variants["b"].edges == (RangeEnd(key="optim.lr", side="upper"),)
    assert found.keys[0].searched == "[0.0001,0.1,log]"
    values = [TrialResult(settings={}, value=value) for value in (None, 2.0, 1.0)]
    assert find_best(values, "low") == 2
