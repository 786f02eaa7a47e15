"""Equal tuning: what is asked for, what is tried, and that no test sample decides."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import TINY

from zoo import config
from zoo.compare.results import Comparison
from zoo.compare.tuning import (
    TunedKey,
    TuningRequest,
    find_best,
    parse_tuned_keys,
    summarize_tuning,
)
from zoo.data.base import DataModule
from zoo.errors import RecipeError
from zoo.run.fit import fit_recipe

BASE = [
    "vit_comrope",
    *(word for word in TINY if "encoding" not in word),
    "trainer.num_threads=1",
    "diagnostics.every_n_steps=null",
]
TUNED = ["encodings=[none,learned]", "tune.optim.lr=[1e-4,1e-1,log]", "budget=3", "seeds=1"]
LR = TunedKey(key="optim.lr", low=1e-4, high=1e-1, scale="log")
CHOICE = TunedKey(key="optim.encoding_lr", scale="choices", choices=("1", "3", "10"))


def test_a_design_begins_with_the_recipe_and_a_larger_one_goes_on_with_a_smaller():
    small = TuningRequest(keys=(LR, CHOICE), budget=4, seed=1000).points
    large = TuningRequest(keys=(LR, CHOICE), budget=13, seed=1000).points
    assert small[0] == {}
    assert large[:4] == small
    rates = [float(one["optim.lr"]) for one in large[1:]]
    assert len(set(rates)) == 12
    assert min(rates) < 1e-3 < 1e-2 < max(rates)  # every third of the range is tried
    chosen = [one["optim.encoding_lr"] for one in large[1:]]
    assert all(chosen.count(choice) == 4 for choice in CHOICE.choices)


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

    code, _, message = compared(*BASE, "encodings=[none,learned]", "budget=3", "to=c")
    assert code == 2
    assert "nothing is tuned" in message

    wrong = [*TUNED[:1], "tune.optim.weight_deccay=[0,0.1]", *TUNED[2:]]
    code, _, message = compared(*BASE, *wrong, "to=c")
    assert code == 2
    assert "did you mean optim.weight_decay" in message


def kill_when_there(folder, pattern, words):
    """Run a comparison, and kill it and its cells when a file appears."""
    command = [sys.executable, "-m", "zoo", "compare", *words]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not list(Path(folder).glob(pattern)) and time.monotonic() < until:
        assert process.poll() in (None, 0)
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_each_variant_gets_its_own_best_trial_and_no_trial_is_tested(compared):
    code, out, message = compared(*BASE, *TUNED, "to=c", "jobs=2")
    assert code == 0, message
    assert "2 variants with 3 trials each: 6 trials, then 2 cells" in message
    found = Comparison.read(Path("c/results.json"))
    trials = sorted(Path("c/tuning/trials").iterdir())
    assert len(trials) == 6
    assert not any((path / "end.json").exists() for path in trials)
    assert not any("test/" in (path / "metrics.csv").read_text() for path in trials)

    rates = set()
    for name in ("none", "learned"):
        own = found.tuning["variants"][name]
        values = [one["value"] for one in own["trials"]]
        assert own["best"] == max(range(3), key=lambda number: values[number]) or (
            found.tuning["better"] == "low" and own["best"] == values.index(min(values))
        )
        settings = own["trials"][own["best"]]["settings"]
        recipe = config.load(f"c/recipes/{name}-0.yaml")
        assert recipe.optim.options["lr"] == settings["optim.lr"]
        rates.add(tuple(one["settings"]["optim.lr"] for one in own["trials"]))
    assert len(rates) == 1  # both tried the same
    assert "## Tuning" in out
    assert "Held equal" in out

    # killed while it is tuned and while its cells train, it ends with the same results
    words = [*BASE, *TUNED, "jobs=2", "to=killed"]
    kill_when_there("killed", "tuning/trials/*/trial.json", words)
    assert not Path("killed/cells").exists()
    kill_when_there("killed", "cells/*/start.json", words)
    assert compared(*words)[0] == 0
    once, twice = (read_lasting(Path(folder, "results.json")) for folder in ("c", "killed"))
    assert twice == once


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
    recipe = config.load(BASE[0], BASE[1:])
    found = fit_recipe(recipe, tmp_path / "trial", "never", [], is_tested=False)
    assert found["best"] is not None
    with pytest.raises(AssertionError, match="test samples are read"):
        fit_recipe(recipe, tmp_path / "tested", "never", [])


def test_a_planted_better_setting_is_found_and_an_edge_is_told():
    request = TuningRequest(keys=(LR,), budget=6, seed=1000)
    settings = [{"optim.lr": float(point.get("optim.lr", 1e-3))} for point in request.points]
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
