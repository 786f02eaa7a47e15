"""`zoo export` writes a new folder whole or not at all, and zoo reads weights and recipe back."""

import json
import os
import signal

import pytest
import torch
from tiny import language
from untrained import made

import zoo as package
from zoo.errors import RecipeError, Stopped
from zoo.export.export import new_folder


@pytest.fixture
def run(tmp_path):
    """A run of an untrained language model."""
    made(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt"))
    return tmp_path / "run"


@pytest.fixture
def exported(run, zoo, tmp_path):
    """Its weights and recipe."""
    pytest.importorskip("safetensors")
    code, out, _ = zoo("export", run, "to=safetensors", "out", "--json")
    assert code == 0
    assert json.loads(out)["files"] == ["model.safetensors", "recipe.yaml"]
    return tmp_path / "out"


def test_zoo_evaluates_what_it_exported(run, exported, zoo):
    def evaluate(folder):
        code, out, _ = zoo("eval", folder, "~evaluate.lengths", "--json")
        assert code == 0
        return json.loads(out)["metrics"]

    assert evaluate(exported) == evaluate(run)
    assert [one.name for one in exported.parent.iterdir() if one.name.startswith(".")] == []


def test_weights_are_loaded_to_the_bit(run, exported):
    first, second = (package.load(folder).state_dict() for folder in (run, exported))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_starts_from_exported_weights(exported, zoo, tmp_path):
    words = language(tmp_path / "text.txt", "trainer.fast_dev_run=true", f"init_from={exported}")
    code, out, _ = zoo("fit", "lm_rope", *words, "--json")
    assert code == 0
    assert json.loads(out)["init_from"]["left"] == {}


def test_a_changed_byte_is_noticed(exported, zoo):
    file = exported / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    code, _, message = zoo("eval", exported)
    assert code == 5
    assert "its checksum does not match" in message


@pytest.mark.parametrize("content", [b"no weights", b""])
def test_a_file_that_is_none_is_refused(zoo, tmp_path, content):
    pytest.importorskip("safetensors")
    (tmp_path / "model.safetensors").write_bytes(content)
    code, _, message = zoo("eval", "model.safetensors")
    assert code == 5
    assert "corrupt" in message


def test_weights_of_other_programs_are_refused(zoo, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"x": torch.ones(2)}, tmp_path / "model.safetensors")
    code, _, message = zoo("eval", "model.safetensors")
    assert code == 5
    assert "zoo convert" in message


def test_an_existing_folder_is_kept(run, zoo, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    code, _, message = zoo("export", run, "to=safetensors", "out")
    assert code == 2
    assert "out: exists already" in message
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["to=safetensors"], "there is no folder to write"),
        (["to=safetensors", "one", "two"], "2 folders"),
        (["to=pickle", "out"], "pickle"),
        (["out"], "to"),
    ],
)
def test_wrong_arguments_are_named(run, zoo, words, part, tmp_path):
    code, _, message = zoo("export", run, *words)
    assert code == 2
    assert part in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stop", ["error", "signal"])
def test_no_half_written_folder_is_left_behind(tmp_path, stop):
    def write():
        with new_folder(tmp_path / "deep" / "out") as folder:
            (folder / "half.txt").write_text("half")
            if stop == "error":
                raise ValueError
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises((ValueError, Stopped)):
        write()
    assert [*(tmp_path / "deep").iterdir()] == []


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match="file/out"), new_folder(tmp_path / "file" / "out"):
        pass
