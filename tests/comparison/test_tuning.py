"""Equal tuning: what is asked for, what is tried, and that no test sample decides."""

import json
import math
import os
import signal
import statistics
import time
from pathlib import Path

import pytest
from tiny import TINY

from zoo import config, packages
from zoo.comparison import request as request_module
from zoo.comparison import runner
from zoo.comparison.grid import parse_tuned_keys
from zoo.comparison.request import parse_request
from zoo.comparison.results import Comparison
from zoo.comparison.tuning import TunedKey, TuningRequest, find_best, summarize_tuning
from zoo.config.command_line import parse_overrides
from zoo.data.base import DataModule
from zoo.errors import RecipeError, ZooError
from zoo.launch.executor import Resources, make_run_dir, write_state
from zoo.packages import PackageError
from zoo.reporting import render
from zoo.run.fit import fit

BASE = [
    "vit_comrope",
    *(word for word in TINY if "encoding" not in word),
    "trainer.num_threads=1",
    "diagnostics.every_n_steps=null",
]
TUNED = [
    *("encodings=[none,learned]", "tune.optim.lr=[1e-4,1e-1,log]", "budget=2", "halving=2"),
    *("seeds=1", "trainer.max_steps=4"),
]
LR = TunedKey(key="optim.lr", low=1e-4, high=1e-1, scale="log")
CHOICE = TunedKey(key="optim.encoding_lr", scale="choices", choices=("1", "3", "10"))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny recipe as a file, which is read faster than a dozen overrides are set."""
    path = tmp_path_factory.mktemp("recipes") / "base.yaml"
    path.write_text(config.load(BASE[0], parse_overrides(BASE[1:])).yaml())
    return str(path)


def parse_unchecked(base, words):
    """Parse the words of a comparison without building models, which takes time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_module, "check", lambda recipe: None)
        return parse_request(base, words, [])


def test_a_design_begins_with_the_recipe_and_a_larger_one_goes_on_with_a_smaller():
    small = TuningRequest(keys=(LR, CHOICE), budget=4, seed=1000).list_points({})
    large = TuningRequest(keys=(LR, CHOICE), budget=13, seed=1000).list_points({})
    assert small[0] == {}
    assert large[:4] == small
    rates = [float(one["optim.lr"]) for one in large[1:]]
    assert len(set(rates)) == 12
    assert min(rates) < 1e-3 < 1e-2 < max(rates)  # every third of the range is tried
    chosen = [one["optim.encoding_lr"] for one in large[1:]]
    assert all(chosen.count(choice) == 4 for choice in CHOICE.choices)


def test_no_trial_repeats_the_recipe_while_other_choices_are_left():
    keys = parse_tuned_keys(["tune.optim.lr=[8e-3,1.6e-2]", "tune.model.bias=[true,false]"], [])
    own = {"optim.lr": 0.016, "model.bias": False}
    points = TuningRequest(keys=tuple(keys), budget=4, seed=1000).list_points(own)
    assert points[0] == {}
    tried = {(json.loads(one["optim.lr"]), json.loads(one["model.bias"])) for one in points[1:]}
    assert tried == {(0.008, True), (0.008, False), (0.016, True)}
    for budget in (5, 1):
        largest = TuningRequest(keys=tuple(keys), budget=budget, seed=1000).list_points(own)
        assert len(largest) == budget


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["tune.optim.lr=[1e-2,1e-4,log]"], "is empty"),
        (["tune.optim.lr=[0,1e-2,log]"], "cannot begin at 0"),
        (["tune.optim.lr=[1e-3,log]"], "two numbers and the word"),
        (["tune.optim.lr=0.1"], "expected a range or a list"),
        (["tune.optim.lr=[1,1]"], "has a choice twice"),
        (["tune.seed=[1,2]"], "does not change how a model is trained"),
        (["tune.encoding_lr=[1,3]", "tune.optim.encoding_lr=[1,3]"], "tuned twice"),
        (["tune.optim=[adamw]", "tune.optim.lr=[1,2]"], "overlaps"),
    ],
)
def test_what_cannot_be_tuned_is_refused(words, problem):
    with pytest.raises(RecipeError, match=problem):
        parse_tuned_keys(words, [])


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
        (["budget=3"], "nothing is tuned"),
        (["halving=2", "sampler=tpe"], "halving: nothing is tuned"),
        ([TUNED[1], "budget=3", "sampler=tpe"], "budget: tpe learns nothing from 3 trials"),
        ([TUNED[1], "budget=8", "sampler=tpe", "halving=2"], "tpe needs trials of one length"),
        ([TUNED[1], "budget=2", "halving=3"], "2 trials cannot be divided by halving=3"),
        (
            ["tune.trainer.max_steps=[2,4]", "budget=2", "halving=2"],
            "halving sets the length of trials",
        ),
        ([TUNED[1], "budget=8", "halving=2"], "first for 1/8 of trainer.max_epochs=1"),
    ],
)
def test_what_a_sampler_or_halving_cannot_do_is_refused(words, problem, base):
    with pytest.raises(RecipeError) as told:
        parse_unchecked(base, ["encodings=[none,learned]", *words])
    assert problem in str(told.value)


def test_a_missing_optuna_is_named_with_its_line(base, monkeypatch):
    monkeypatch.setattr(packages, "_is_installed", lambda module: module != "optuna")
    words = ["encodings=[none,learned]", TUNED[1], "budget=4", "sampler=tpe"]
    with pytest.raises(PackageError, match=r"pip install 'transformer-zoo\[tune\]'"):
        parse_unchecked(base, words)


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
    monkeypatch.setattr(request_module, "check", lambda recipe: None)  # the cells do it too
    monkeypatch.setattr(render, "to_png", lambda *_, **__: b"")
    words = [base, *TUNED, "jobs=2"]
    code, out, message = compared(*words, "to=c")
    assert code == 0, message
    assert (
        "2 variants with 2 trials each, halved: 2 of 1/2, 1 of the full length, 4 steps: 6 trials, "
        "then 2 cells; at most 24 training steps"
    ) in message
    found = Comparison.read(Path("c/results.json"))
    trials = sorted(Path("c/tuning/trials").iterdir())
    assert [path.name for path in trials if "none" in path.name] == [
        *(
            "none-trial-0-1000",
            "none-trial-1-1000",
            f"none-trial-{best_of(found, 'none')}-rung-1-1000",
        )
    ]
    assert len(trials) == 6
    assert not any((path / "end.json").exists() for path in trials)
    assert not any("test/" in (path / "metrics.csv").read_text() for path in trials)

    rates = set()
    for name in ("none", "learned"):
        own = found.tuning["variants"][name]
        assert [one["rung"] for one in own["trials"]].count(1) == 1
        assert own["trials"][own["best"]]["rung"] == 1
        recipe = config.load(f"c/recipes/{name}-0.yaml")
        best = own["trials"][own["best"]]["settings"]
        assert recipe.optim.options["lr"] == best["optim.lr"]
        assert recipe.trainer.max_steps == 4
        rates.add(tuple(one["settings"]["optim.lr"] for one in own["trials"]))
    assert len(rates) == 1  # both tried the same
    assert "## Tuning" in out
    assert "Successive halving, each length trained anew: 2 of 2 steps, 1 of 4 steps" in out
    assert "Held equal" in out

    # killed while it is tuned and while its cells train, it ends with the same results
    kill_when_there(driver, "killed", "tuning/trials/*/trial.json", [*words, "to=killed"])
    assert not Path("killed/cells").exists()
    kill_when_there(driver, "killed", "cells/*/start.json", [*words, "to=killed"])
    assert compared(*words, "to=killed")[0] == 0
    once, twice = (read_lasting(Path(folder, "results.json")) for folder in ("c", "killed"))
    assert twice == once


def best_of(comparison, name):
    return comparison.tuning["variants"][name]["best"]


def tune_by(objective, parsed, folder, most=10**6):
    """Tune with an objective of a trial's recipe in place of training; at most so many a call."""

    def measure(parsed, plan, resources, folder, following):
        waiting = [one for one in plan.cells if not (folder / "trials" / one.name).exists()]
        for one in waiting[:most]:
            run = make_run_dir(folder / "trials" / one.name)
            found = {"monitor": "val/loss", "mode": "min", "best": objective(one)}
            (run / "trial.json").write_text(json.dumps(found))
            write_state(run, "done")
        return ZooError("stopped") if len(waiting) > most else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_run_trials", measure)
        folder.mkdir(exist_ok=True)
        return runner._tune(parsed, Resources(1, 1, 0), folder, 0)


def miss_planted(cell):
    """A loss that is least at a learning rate of 0.02, and lower for longer training."""
    rate, steps = cell.recipe["optim"]["lr"], cell.recipe["trainer"]["max_steps"]
    return None if rate > 0.09 else abs(math.log(rate / 0.02)) + 1 / steps


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        (["budget=5", "halving=2", "trainer.max_steps=9"], {2: 5, 4: 2, 9: 1}),
        (["budget=5", "sampler=tpe", "trainer.max_steps=9"], {9: 5}),
    ],
)
def test_trials_depend_on_ended_ones_equally_often_for_all_variants(words, counts, base, tmp_path):
    if "sampler=tpe" in words:
        pytest.importorskip("optuna")
    parsed = parse_unchecked(base, [*TUNED[:2], *words, "seeds=1"])
    _, tuning, problem = tune_by(miss_planted, parsed, tmp_path / "once")
    assert problem is None
    plan = json.loads((tmp_path / "once/tuning/plan.json").read_text())
    for name in ("none", "learned"):
        own = [one for one in plan["cells"] if one["variant"].startswith(f"{name} trial")]
        steps = [one["recipe"]["trainer"]["max_steps"] for one in own]
        assert {one: steps.count(one) for one in steps} == counts
        found = tuning["variants"][name]
        rates = [one["settings"]["optim.lr"] for one in found["trials"]]
        measured = [rate for rate in rates if rate <= 0.09]
        assert rates[found["best"]] == min(measured, key=lambda rate: abs(math.log(rate / 0.02)))

    for _ in range(9):
        _, again, problem = tune_by(miss_planted, parsed, tmp_path / "stopped", most=5)
        if problem is None:
            break
    assert again == tuning


def test_tpe_looks_where_losses_were_low():
    pytest.importorskip("optuna")
    request = TuningRequest(keys=(LR, CHOICE), budget=16, seed=1000, sampler="tpe")
    values = {}
    own = {"optim.lr": 0.001, "optim.encoding_lr": 3}
    while len(trials := request.list_trials(values, own, "low")) > len(values):
        for one in trials:
            rate = float(one.setting.get("optim.lr", 0.001))
            values[one.number, 0] = None if rate > 0.09 else abs(math.log(rate / 0.02))
    assert [one.setting for one in trials[:8]] == request.list_points(own)[:8]
    misses = [abs(math.log(float(one.setting["optim.lr"]) / 0.02)) for one in trials[1:]]
    assert statistics.median(misses[7:]) < statistics.median(misses[:7])
    # with the results turned around it looks elsewhere
    other = request.list_trials({key: values[key] for key in values if key[0] < 8}, own, "high")
    assert other[8].setting != trials[8].setting


def test_a_trial_that_fails_at_full_length_gives_way_to_one_that_was_shorter():
    request = TuningRequest(keys=(LR,), budget=4, seed=1000, halving=2)
    values = {(0, 0): 3.0, (1, 0): 1.0, (2, 0): None, (3, 0): 2.0, (1, 1): 1.0, (3, 1): 1.5}
    trials = request.list_trials(values, {}, "low")
    assert [(one.number, one.rung) for one in trials[4:]] == [(1, 1), (3, 1), (1, 2)]
    ended = [(3.0, 0), (None, 2), (None, 0), (1.5, 1)]
    own = [{"settings": {}, "value": value, "rung": rung} for value, rung in ended]
    assert find_best(own, "low") == 3


def read_lasting(path):
    """Return results.json without what differs from run to run: time, memory and the command."""
    found = json.loads(path.read_text())
    for key in ("created", "command", "machine", "equal_compute"):
        del found[key]
    for variant in found["variants"]:
        for cell in variant["cells"]:
            for key in ("minutes", "step_seconds", "peak_memory"):
                del cell[key]
    return found


def test_a_trial_reads_no_test_sample(monkeypatch, tmp_path):
    def leak(self):
        raise AssertionError("test samples are read")

    monkeypatch.setattr(DataModule, "test_dataloader", leak)
    recipe = config.load(BASE[0], parse_overrides(BASE[1:]))
    found = fit(recipe, tmp_path / "trial", is_tested=False)
    assert found.best is not None
    with pytest.raises(AssertionError, match="test samples are read"):
        fit(recipe, tmp_path / "tested")


def test_a_planted_better_setting_is_found_and_an_edge_is_told():
    request = TuningRequest(keys=(LR,), budget=6, seed=1000)
    settings = [
        {"optim.lr": float(point.get("optim.lr", 1e-3))} for point in request.list_points({})
    ]
    highest = max(one["optim.lr"] for one in settings)
    flat = [{"settings": one, "value": 0.5, "error": ""} for one in settings]
    planted = [
        {"settings": one, "value": 0.9 if one["optim.lr"] == highest else 0.5, "error": ""}
        for one in settings
    ]
    found = summarize_tuning(request, "val/accuracy", "high", {"a": flat, "b": planted})["variants"]
    assert found["a"]["best"] == 0  # equal ones: the recipe's own
    assert len(found["a"]["near"]) == 6
    assert settings[found["b"]["best"]]["optim.lr"] == highest
    assert found["b"]["edges"] == [
        {"key": "optim.lr", "side": "upper", "searched": "[0.0001,0.1,log]"}
    ]
    assert find_best([{"value": None}, {"value": 2.0}, {"value": 1.0}], "low") == 2
