"""Where the results of an evaluation go if its run may only be read, or the disk is full."""

import errno
import json
import os
from pathlib import Path

import pytest
from tiny import TINY
from untrained import write_checkpoint

import zoo as api
from zoo.errors import RecipeError, ZooError
from zoo.evaluation.evaluate import RESULT, Evaluator
from zoo.tasks.metrics import CONFUSION

SIZES = "evaluate.resolutions=[12]"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    write_checkpoint(folder / "run", "vit_comrope", TINY)
    return folder / "run"


@pytest.fixture
def untouched(run):
    """The files of the run, which stay what they were."""
    before = sorted(run.rglob("*"))
    yield
    assert sorted(run.rglob("*")) == before


def deny(*_, **__):
    raise PermissionError(errno.EROFS, os.strerror(errno.EROFS), "somewhere")


def test_a_run_that_may_only_be_read_is_told_before_anything_is_measured(
    run, untouched, zoo, monkeypatch
):
    monkeypatch.setattr("zoo.evaluation.evaluate.check_writable", deny)
    monkeypatch.setattr(Evaluator, "_measure", lambda *_: pytest.fail("measured"))
    code, _, message = zoo("eval", run, SIZES)
    assert code == 2
    assert f"{run / RESULT} cannot be written, Read-only file system" in message
    assert "write it elsewhere, with to=evaluation" in message
    with pytest.raises(RecipeError, match='with to="evaluation"'):
        api.evaluate(run, resolutions=[12], verbose=False)


def test_a_folder_of_its_own_has_all_files(run, untouched, zoo):
    code, out, message = zoo("eval", run, SIZES, "to=results/here", "--json")
    assert code == 0, message
    folder = Path("results/here")
    assert {path.name for path in folder.iterdir()} == {
        RESULT,
        CONFUSION,
        "resolutions.png",
        "resolutions.svg",
        "resolutions.pdf",
        "table.tex",
        "table.csv",
    }
    assert json.loads((folder / RESULT).read_text())["conditions"] == json.loads(out)["conditions"]
    # also of the test data alone, which is otherwise only printed
    found = api.evaluate(run, {"evaluate.resolutions": None}, to="alone", verbose=False)
    assert json.loads(Path("alone", RESULT).read_text())["metrics"] == found.metrics


def test_without_further_conditions_a_run_that_may_only_be_read_is_measured(
    run, untouched, zoo, monkeypatch, caplog
):
    caplog.set_level("INFO", "zoo")
    monkeypatch.setattr(os, "access", lambda *_: False)
    code, out, _ = zoo("eval", run, "evaluate.resolutions=null")
    assert (code, "accuracy" in out) == (0, True)
    assert f"{CONFUSION} is not written: {run} may only be read" in caplog.messages


@pytest.mark.parametrize("is_json", [True, False])
def test_a_full_disk_loses_no_result(is_json, run, untouched, zoo, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    code, out, message = zoo("eval", run, SIZES, "to=full", *["--json"] * is_json)
    assert code == 1
    assert "cannot be written, No space left on device" in message
    if is_json:
        found = json.loads(out)
        assert [one["name"] for one in found["conditions"]] == ["trained", "12"]
        assert "No space left" in found["problem"]
    else:
        assert "12 pixels" in out


@pytest.mark.parametrize("plant", [os.mkdir, os.mkfifo])
def test_something_else_in_the_place_of_the_result_is_told_first(plant, run, zoo, monkeypatch):
    monkeypatch.setattr(Evaluator, "_measure", lambda *_: pytest.fail("measured"))
    os.mkdir("to")
    plant(Path("to", RESULT))
    code, _, message = zoo("eval", run, "to=to")
    assert (code, f"to/{RESULT} cannot be written" in message) == (2, True)
    Path("file").touch()
    code, _, message = zoo("eval", run, "to=file/below")
    assert (code, "cannot be written" in message) == (2, True)


def test_an_error_of_a_figure_keeps_the_numbers(run, zoo, monkeypatch):
    def fail(*_):
        raise ZooError("resolutions.png: cannot be written, No space left on device")

    monkeypatch.setattr("zoo.evaluation.evaluate.save_figure", fail)
    found = api.evaluate(run, resolutions=[12], to="a", verbose=False)
    assert found.problem.startswith("resolutions.png")
    assert len(json.loads(Path("a", RESULT).read_text())["conditions"]) == 2
