"""Studies: each tunes all variants anew, and tests what validation chose."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import clone_committed, read_cell, read_lasting
from tiny import TINY

import zoo
from zoo import config
from zoo.comparison import compare, request
from zoo.comparison.design import ChoiceAxis, Range
from zoo.comparison.effects import has_effect
from zoo.comparison.plan import ComparisonPlan
from zoo.comparison.record_file import read_cells, write_cells
from zoo.comparison.results import Comparison
from zoo.comparison.study_trials import list_study_trials
from zoo.config import Change
from zoo.config.command_line import parse_overrides
from zoo.reporting import charts
from zoo.run.build import Experiment

SMALL = [*(word for word in TINY if "encoding" not in word), "trainer.num_threads=1"]
BASE = [
    "vit_comrope",
    *SMALL,
    "diagnostics.every_n_steps=null",
    "trainer.max_steps=3",
    "encodings=[none,learned]",
    "tune.optim.lr=[1e-3,1e-1,log]",
    "tune.encoding_lr=[1,10]",
    "studies=2",
    "budget=2",
]


def test_each_study_tests_what_validation_chose_and_trains_nothing_twice(compared):
    code, out, message = compared(*BASE, "to=whole")
    assert code == 0, message
    plan = ComparisonPlan.read(Path("whole"))
    assert plan.design.effective == {
        "none": ("optim.lr",),  # it has no parameters of its own
        "learned": ("optim.lr", "optim.encoding_lr"),
    }
    cells = {one.name: read_cell("whole", one.name) for one in plan.cells}
    assert len(cells) == 8
    assert {one.seed for one in cells.values()} == {0, 1}
    found = Comparison.read(Path("whole/results.json"))
    assert found.seeds == (0, 1)
    assert found.findings == ()
    assert found.studies.criterion == "val/accuracy"
    for variant in found.variants:
        assert [cell.state for cell in variant.cells] == ["done", "done"]
        studies = found.studies.variants[variant.name].studies
        for own, cell in zip(studies, variant.cells, strict=True):
            trials = [cells[f"{variant.name}-{own.study}-{n}"] for n in range(2)]
            assert [one.value for one in trials] == [one.value for one in own.trials]
            best = max(range(2), key=lambda n: trials[n].value)
            assert own.best == best
            assert [bool(one.test) for one in trials] == [n == best for n in range(2)]
            assert all(one.minutes > 0 for one in trials)
            assert cell.find(found.trained).metrics == trials[best].test
            # the test went on where the trial had ended
            log = Path("whole", cell.run_dir, "train.log").read_text()
            assert "Resuming from" in log
    rates = [cells[f"none-{study}-{n}"].settings["optim.lr"] for study in (0, 1) for n in (0, 1)]
    assert len(set(rates)) == 4  # each study has its own offset
    assert not list(Path("whole/cells").glob("*/checkpoints"))
    assert "## Studies" in out
    assert "no effect" in out

    # begun in one repository and continued in a clone of it, it ends with the same numbers
    for part, folder in (("2/2", "first"), ("1/2", "second")):
        code, _, message = compared(*BASE, f"to={folder}", f"part={part}")
        assert code == 0, message
        if folder == "first":
            clone_committed("first", "second")
    assert read_lasting("second") == read_lasting("whole")

    # trained again, a trial is equal in its validation, and in its test if it was tested
    leaked = next(one for one in cells.values() if not one.test)
    tested = next(one for one in cells.values() if one.test)
    for one in (leaked, tested):
        assert zoo.check_comparison("second", cell=one.name, verbose=False).differences == ()

    # one that was not planned is named as a leak
    write_cells(Path("whole"), [replace(leaked, test=tested.test)])
    out = compared("rebuild", "whole")[1]
    assert f"test leak: {leaked.variant}, study {leaked.study}: {leaked.name} was tested" in out


def kill_when_there(begin, folder, pattern, words):
    """Run a comparison, and kill it, and so its cells, when a file appears."""
    process = begin(*words)
    until = time.monotonic() + 120
    while not list(Path(folder).glob(pattern)) and time.monotonic() < until:
        assert os.waitpid(process, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def test_studies_that_are_killed_continue_to_the_same_results(compared, driver, monkeypatch):
    # the cells do it too
    monkeypatch.setattr(request, "build_experiment", Experiment)
    monkeypatch.setattr(charts, "render_formats", lambda chart: {".png": b""})
    words = [*BASE[:-2], "studies=1", "budget=2"]
    code, _, message = compared(*words, "to=c")
    assert code == 0, message
    assert (
        "1 studies of 2 variants: 4 trials, of which the best of each study and variant is tested; "
        "at most 12 training steps"
    ) in message
    # no trial that was not chosen has read a test sample
    names = {path.parent.name for path in Path("c/cells").glob("*/end.json")}
    assert len(names) == 2
    for path in Path("c/cells").glob("*/metrics.csv"):
        assert ("test/" in path.read_text()) == (path.parent.name in names)

    kill_when_there(driver, "killed", "cells/*/trial.json", [*words, "to=killed"])
    kill_when_there(driver, "killed", "cells/*/end.json", [*words, "to=killed"])
    code, _, message = compared(*words, "to=killed")
    assert code == 0, message
    assert read_lasting("killed") == read_lasting("c")


@pytest.mark.nightly
def test_a_study_that_was_left_before_its_test_is_tested_elsewhere(compared, monkeypatch):
    monkeypatch.setattr(charts, "render_formats", lambda chart: {".png": b""})
    words = [*BASE[:-2], "studies=1", "budget=2"]
    code, _, message = compared(*words, "to=whole")
    assert code == 0, message
    with monkeypatch.context() as leaving:
        leaving.setattr(compare, "_test_chosen", lambda *given: None)
        compared(*words, "to=left")
    assert len(read_cells(Path("left"))) == 4
    # its weights stay on its machine
    clone_committed("left", "cloned")
    code, out, message = compared(*words, "to=cloned")
    assert code == 0, message
    assert "failed" not in out
    assert read_lasting("cloned") == read_lasting("whole")


def load_with(*words):
    overrides = parse_overrides([*SMALL, *words])
    return lambda settings: config.load("vit_comrope", [*overrides, *settings_to_edits(settings)])


def settings_to_edits(settings):
    return [Change(key, value) for key, value in settings.items()]


@pytest.mark.parametrize(
    ("encoding", "axis", "expected"),
    [
        ("none", ChoiceAxis("optim.encoding_lr", (1, 10)), False),
        ("learned", ChoiceAxis("optim.encoding_lr", (1, 10)), True),
        ("none", ChoiceAxis("model.encoding.0.coordinates", ("index",)), False),
        ("rope_axial", Range("model.encoding.0.base", 10.0, 1000.0), True),
        ("none", Range("model.block.dropout", 0.1, 0.5, "linear"), True),
        ("none", Range("optim.lr", 1e-4, 1e-2), True),
    ],
)
def test_a_key_has_an_effect_if_the_model_computes_something_else(encoding, axis, expected):
    assert has_effect(axis, load_with(f"model.encoding=[{{name: {encoding}}}]")) is expected


def test_more_studies_begin_with_fewer_of_them():
    keys = (Range("optim.lr", 1e-4, 1e-2), ChoiceAxis("optim.encoding_lr", (1, 10)))
    effective = {"a": ("optim.lr",), "b": ("optim.lr", "optim.encoding_lr")}
    few = list_study_trials(keys, effective, 2, 3, 0)
    many = list_study_trials(keys, effective, 4, 3, 0)
    assert many[: len(few)] == few
    assert len(few) == 2 * 2 * 3
    rates = {one.variant: [] for one in few}
    for one in few:
        rates[one.variant].append(one.settings["optim.lr"])
    assert rates["a"] == rates["b"]
    assert all("optim.encoding_lr" not in one.settings for one in few if one.variant == "a")
