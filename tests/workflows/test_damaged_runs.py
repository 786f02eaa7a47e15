"""What a diagnosis and its kin say of runs that are damaged, stopped, or cannot be read or written."""

import json
import math
import shutil
import signal
from pathlib import Path

import pytest
import torch
from tiny import language
from untrained import write_checkpoint

from zoo.run import checkpoint
from zoo.tasks.causal_lm import CausalLM

CPU = "trainer.accelerator=cpu"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A decoder of text that nobody trained."""
    folder = tmp_path_factory.mktemp("damaged")
    write_checkpoint(
        folder / "decoder", "lm_rope", [*language(folder / "letters.txt"), "evaluate.lengths=null"]
    )
    return folder / "decoder"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("verb", ["eval", "diagnose"])
def test_a_signal_while_testing_stops_with_its_code(verb, number, run, zoo, monkeypatch):
    monkeypatch.setattr(
        CausalLM, "on_test_batch_start", lambda *given: signal.raise_signal(number), raising=False
    )
    code, out, message = zoo(verb, run, CPU)
    assert (code, out) == (128 + number, "")
    assert f"stopped by {number.name} while testing" in message
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints"]


def test_a_signal_at_the_last_moment_of_testing_stops_too(run, zoo, monkeypatch):
    monkeypatch.setattr(
        CausalLM, "on_test_end", lambda *given: signal.raise_signal(signal.SIGTERM), raising=False
    )
    assert zoo("eval", run, CPU)[0] == 143


@pytest.fixture
def copy(run, tmp_path):
    """The same run, to be damaged."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


@pytest.fixture
def skip_tests(monkeypatch):
    """Long work is a failure."""
    monkeypatch.setattr(
        "zoo.diagnosis.trained_run.TrainedRun.run_controls",
        lambda *given: pytest.fail("it was tested"),
    )
    monkeypatch.setattr(
        "zoo.diagnosis.diagnose.capture_attention", lambda *given: pytest.fail("it was looked at")
    )


@pytest.mark.parametrize("name", ["evaluation", "environment"])
def test_numbers_take_no_other_files_place(name, copy, zoo, skip_tests):
    other = copy / f"{name}.json"
    other.write_text("{}")
    code, _, message = zoo("diagnose", copy, f"to={copy / name}.html")
    assert code == 2
    assert f"{name}.json exists and is no diagnosis" in message
    assert [*copy.glob("*.html")] == []
    assert other.read_text() == "{}"


def test_a_diagnosis_takes_the_place_of_one_before_it_in_any_case_of_letters(copy, zoo):
    words = (
        "diagnose",
        copy,
        f"to={copy / 'page.HTML'}",
        "limit=1",
        "controls=false",
        "samples=1",
        CPU,
    )
    assert [zoo(*words)[0] for _ in range(2)] == [0, 0]
    assert {path.name for path in copy.iterdir()} == {"checkpoints", "page.HTML", "page.json"}


def test_a_folder_that_takes_no_file_is_told_before_long_work(copy, zoo, skip_tests, monkeypatch):
    monkeypatch.setattr("zoo.diagnosis.diagnose.check_writable", deny)
    code, _, message = zoo("diagnose", copy)
    assert code == 2
    assert "diagnosis.html cannot be written, Permission denied" in message
    assert zoo("diagnose", copy, f"to={'x' * 300}.html")[0] == 2
    (copy / "diagnosis.html").mkdir()
    assert "diagnosis.html is a folder" in zoo("diagnose", copy)[2]


def deny(*given, **more):
    raise PermissionError(13, "Permission denied", "somewhere")


def test_what_lies_beside_any_run_is_read_before_long_work(run, copy, zoo, skip_tests):
    (copy / "evaluation.json").write_text('{"checkpoint": "best.ckpt", "conditions": [{}]}')
    code, _, message = zoo("diagnose", run, copy, CPU)
    assert code == 4
    assert "evaluation.json: not as zoo writes it, it has no key metrics" in message


WITHOUT_SIZES = {
    "recipe": "lm_rope",
    "checkpoint": "best.ckpt",
    "data": "text",
    "count": 1,
    "metrics": {"test/loss": 1.0},
    "trained_size": [16],
    "conditions": [
        {
            "name": "trained",
            "kind": "trained",
            "size": [16],
            "extrapolation": None,
            "data_variant": None,
            "metrics": {"test/loss": 1.0},
        }
    ],
}


def test_metrics_of_which_nothing_can_be_drawn_are_told_of(copy, zoo, caplog, monkeypatch):
    caplog.set_level("INFO", "zoo")
    (copy / "metrics.csv").write_text("step,epoch\n")
    (copy / "evaluation.json").write_text(json.dumps(WITHOUT_SIZES))
    assert zoo("diagnose", copy, "limit=1", "controls=false", CPU)[0] == 0
    left = [
        line.split(":")[0].split("/")[-1]
        for line in caplog.messages
        if "nothing in it can be drawn" in line
    ]
    assert left == ["metrics.csv", "evaluation.json"]


def test_metrics_that_cannot_be_read_are_told_alike(copy, zoo, skip_tests, monkeypatch):
    (copy / "metrics.csv").write_bytes(b"\xff\n")
    undecodable = zoo("diagnose", copy)
    (copy / "metrics.csv").unlink()
    (copy / "metrics.csv").mkdir()
    folder = zoo("diagnose", copy)
    (copy / "metrics.csv").rmdir()
    (copy / "metrics.csv").touch()
    monkeypatch.setattr("zoo.run.loggers.read", deny)
    unreadable = zoo("diagnose", copy)
    assert [code for code, _, _ in (undecodable, folder, unreadable)] == [4, 4, 4]
    assert "metrics.csv: cannot be read, Permission denied" in unreadable[2]
    assert "metrics.csv: cannot be read, Is a directory" in folder[2]


def rewrite(file, change):
    """Write a checkpoint anew, sealed as zoo does, with something of it changed."""
    content = torch.load(file, weights_only=True)
    change(content)
    checkpoint.write_sealed(checkpoint.serialise(content), file)


def test_weights_that_are_not_finite_are_told(copy, zoo, skip_tests):
    rewrite(
        copy / "checkpoints" / "best.ckpt",
        lambda content: next(iter(content["state_dict"].values())).fill_(math.nan),
    )
    code, _, message = zoo("diagnose", copy)
    assert code == 5
    assert "numbers that are NaN or infinite" in message


STRANGE = {
    "no recipe": (lambda content: content["zoo"].pop("recipe"), "it has no recipe"),
    "a list": (lambda content: content.update(zoo=[1]), "it has no recipe"),
    "a text for a recipe": (
        lambda content: content["zoo"].update(recipe="rope"),
        "it has no recipe",
    ),
    "no name": (lambda content: content["zoo"].pop("name"), "it has no name of its recipe"),
    "a recipe of nothing": (lambda content: content["zoo"].update(recipe={}), "model: missing"),
    "weights that are none": (
        lambda content: content.update(state_dict={"a": 1}),
        "it has no weights",
    ),
    "an unknown key": (
        lambda content: content["zoo"]["recipe"].update(depht=2),
        "depht: unknown key",
    ),
    "an unknown encoding": (
        lambda content: content["zoo"]["recipe"]["model"].update(encoding="mine"),
        "there is no 'mine' among encodings; if that comes from a plug-in, begin with --plugin MODULE\n",
    ),
}


@pytest.mark.parametrize("case", STRANGE)
def test_checkpoints_that_say_something_else_of_themselves_are_told(case, copy, zoo, skip_tests):
    change, part = STRANGE[case]
    rewrite(copy / "checkpoints" / "best.ckpt", change)
    for verb in ("diagnose", "eval"):
        code, _, message = zoo(verb, copy, CPU)
        assert code == 5
        assert "best.ckpt: " in message
        assert part in message


def test_a_wrong_override_is_no_fault_of_the_checkpoint(copy, zoo):
    assert (
        zoo("eval", copy, "data.name=digits")[0] == 2
    )  # keys that the checkpoint has are unknown then
    assert zoo("eval", copy, "model.encoding=mine")[0] == 2


@pytest.mark.parametrize("is_link", [False, True], ids=["named", "linked by version 0.3"])
@pytest.mark.parametrize("verb", ["diagnose", "eval", "generate"])
def test_the_newest_run_of_a_name_is_offered(verb, is_link, copy, zoo, tmp_path):
    home = tmp_path / "runs" / "lm_rope"
    home.mkdir(parents=True)
    copy.rename(home / "old")
    if is_link:
        (home / "latest").symlink_to("old")
    else:
        (home / "latest").write_text("old\n")
    code, _, message = zoo(verb, "lm_rope")
    assert code == 5
    assert "lm_rope: no such checkpoint in " in message
    assert message.endswith("; did you mean runs/lm_rope/latest?\n")
    assert "empty name" in zoo(verb, "")[2]


def test_a_mistyped_run_is_told_its_right_name(copy, zoo):
    code, _, message = zoo("eval", copy.with_name("cpoy"))
    assert code == 5
    assert message.endswith(
        f"cpoy: no such checkpoint in {copy.parent.resolve()}; did you mean {copy}?\n"
    )
    assert "did you mean" not in zoo("eval", copy.with_name("another"))[2]


def test_a_run_that_cannot_be_looked_into_is_told_as_a_checkpoint_is(copy, zoo, monkeypatch):
    monkeypatch.setattr(Path, "is_file", deny)
    code, _, message = zoo("eval", copy)
    assert code == 5
    assert message.endswith("copy: cannot be read, Permission denied\n")


def test_a_length_that_a_table_has_not_is_told_before_anything_is_looked_at(
    run, copy, zoo, skip_tests, tmp_path, caplog
):
    caplog.set_level("INFO", "zoo")
    write_checkpoint(
        tmp_path / "table",
        "lm_rope",
        [*language(tmp_path / "words.txt"), "evaluate.lengths=null", "model.encoding=learned"],
    )
    code, _, message = zoo("diagnose", tmp_path / "table", "data.length=32", CPU)
    assert code == 2
    assert "nothing was started" in message
    assert caplog.messages == []


def test_attention_that_overflows_is_told(copy, zoo):
    def grow(content):
        for name, weight in content["state_dict"].items():
            weight.mul_(1e25 if "attn" in name else 1)

    rewrite(copy / "checkpoints" / "best.ckpt", grow)
    code, _, message = zoo("diagnose", copy, "limit=1", "controls=false", CPU)
    assert code == 3
    assert "best.ckpt: attention in layer 0 is infinite or NaN" in message
