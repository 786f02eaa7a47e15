"""`zoo export` writes a new folder whole or not at all, and zoo reads weights and recipe back."""

import json
import os
import pickle
import resource
import signal
import sys

import pytest
import torch
from parts import mark_others
from tiny import language
from untrained import write_checkpoint

import zoo as package
from zoo.errors import CheckpointError, RecipeError, Stopped, ZooError
from zoo.formats.folders import new_folder
from zoo.run import checkpoint
from zoo.run.run_dir import LockedError

NEEDED = {"hf": "huggingface_hub", "llama": "safetensors", "safetensors": "safetensors"}
NEEDED |= {"onnx": "onnxscript", "torch_export": "onnxscript"}


@pytest.fixture
def run(tmp_path):
    """A run of an untrained language model."""
    write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt"))
    return tmp_path / "run"


@pytest.fixture
def export_folder(run, zoo, tmp_path):
    """Its weights and recipe."""
    pytest.importorskip("safetensors")
    code, out, _ = zoo("export", run, "to=safetensors", "out", "--json")
    assert code == 0
    assert json.loads(out)["files"] == ["model.safetensors", "recipe.yaml"]
    return tmp_path / "out"


def test_zoo_evaluates_what_it_exported(run, export_folder, zoo):
    def evaluate(folder):
        code, out, _ = zoo("eval", folder, "~evaluate.lengths", "--json")
        assert code == 0
        return json.loads(out)["metrics"]

    assert evaluate(export_folder) == evaluate(run)
    assert [one.name for one in export_folder.parent.iterdir() if one.name.startswith(".")] == []


def test_weights_are_loaded_to_the_bit(run, export_folder):
    first, second = (package.load(folder).state_dict() for folder in (run, export_folder))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_starts_from_exported_weights(export_folder, zoo, tmp_path):
    words = language(
        tmp_path / "text.txt", "trainer.fast_dev_run=true", f"init_from={export_folder}"
    )
    code, out, _ = zoo("fit", "lm_rope", *words, "--json")
    assert code == 0
    assert json.loads(out)["init_from"]["left"] == {}


def test_a_changed_byte_is_noticed(export_folder, zoo):
    file = export_folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    code, _, message = zoo("eval", export_folder)
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
    assert [*tmp_path.iterdir()] == []


def kill_while_writing(folder, files):
    """Kill a process that has written so many files of a folder."""
    child = os.fork()
    if child == 0:
        with new_folder(folder) as unfinished:
            for number in range(files):
                (unfinished / f"{number}.txt").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, caplog):
    for files in (0, 1, 3):
        kill_while_writing(tmp_path / "out", files)
        assert not (tmp_path / "out").exists()
        assert (tmp_path / ".out.writing").exists()
    caplog.clear()
    with new_folder(tmp_path / "out") as unfinished:
        assert [*unfinished.iterdir()] == []
        (unfinished / "whole.txt").write_text("whole")
    assert [f"removed {tmp_path}/.out.writing" in line for line in caplog.messages] == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["whole.txt"]


def test_two_processes_do_not_write_one_folder(tmp_path):
    with new_folder(tmp_path / "out"):
        with pytest.raises(LockedError, match="another process is writing"):
            new_folder(tmp_path / "out").__enter__()
        (tmp_path / "other").mkdir()
        with pytest.raises(ZooError, match="nothing was kept"), new_folder(tmp_path / "other"):
            # somebody else takes the name
            (tmp_path / "other" / "theirs.txt").write_text("theirs")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]
    assert (tmp_path / "other" / "theirs.txt").read_text() == "theirs"


@pytest.mark.parametrize("target", mark_others(NEEDED, kept={*NEEDED} - {"onnx"}))
def test_nothing_is_left_on_a_full_disk(run, zoo, tmp_path, monkeypatch, target):
    if target == "hf":
        pytest.importorskip("safetensors")
    pytest.importorskip(NEEDED[target])
    # Python would store cut bytecode of modules that it compiles here, and fail to load it from then on
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        code, _, message = zoo("export", "run", f"to={target}", "deep/out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 1
    assert "cannot be written, File too large" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "deep").exists()


def test_links_and_the_current_folder_are_kept(run, zoo, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "nowhere").symlink_to("missing")
    for name in ("link", "nowhere", "text.txt"):
        code, _, message = zoo("export", run, "to=safetensors", name)
        assert (code, f"{name}: exists already" in message) == (2, True)
    monkeypatch.chdir(tmp_path / "empty")
    assert zoo("export", run, "to=safetensors", ".")[0] == 2


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_pickles_are_never_loaded(tmp_path, zoo, name):
    pytest.importorskip("safetensors")
    folder = tmp_path / "it"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "zoo"}')
    for write in (pickle.dump, torch.save):
        with (folder / name).open("wb") as file:
            write({"x": Trap(tmp_path / "sprung")}, file)
        for command in (["convert", "it", "to=new"], ["eval", "it"], ["eval", f"it/{name}"]):
            code, _, message = zoo(*command)
            assert (code, message.count("\n")) == (5, 1), message
        with pytest.raises(CheckpointError):
            package.load(folder)
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "new").exists()


def test_other_tensors_than_those_of_the_recipe_are_named(export_folder, zoo):
    content = checkpoint.read(export_folder / "model.safetensors")
    weights = dict(content["state_dict"])
    removed = next(iter(weights))
    del weights[removed]
    weights["model.strange"] = torch.zeros(3)
    checkpoint.write_safetensors(weights, content["zoo"], export_folder / "model.safetensors")
    code, _, message = zoo("eval", export_folder)
    assert code == 5
    assert removed in message
    assert "model.strange" in message
    with pytest.raises(CheckpointError, match=r"model\.strange"):
        package.load(export_folder)


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match="file/out"), new_folder(tmp_path / "file" / "out"):
        pass
