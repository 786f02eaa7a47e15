"""Checkpoints in folders of shards: whole or not at all, checked, and nothing of them run."""

import json
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter, save

from zoo.errors import CheckpointError
from zoo.run import checkpoint, shard_files

# a lone process writes the folders of these tests
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


def make_content(weight=1.0):
    moments = {"exp_avg": torch.arange(3.0), "step": torch.tensor(7.0)}
    return {
        "zoo": {"recipe": {}, "name": "tiny", "version": "0.4.0"},
        "state_dict": {"first.weight": torch.full((2, 3), weight), "scale": torch.tensor(2.0)},
        "averaging_state": {"n_averaged": torch.tensor(4)},
        "current_model_state": {"first.weight": torch.zeros(2, 3)},
        "optimizer_states": [
            {
                "state": {"first.weight": moments},
                "param_groups": [
                    {"params": ["scale"], "lr": 0.1},
                    {"params": ["first.weight"], "lr": 0.2},
                ],
            }
        ],
        "global_step": 3,
    }


@pytest.fixture
def path(tmp_path):
    """A checkpoint in a folder, which one process has written."""
    shard_files.write_shards(make_content(), tmp_path / "last.ckpt", 0, lambda value: [value])
    return tmp_path / "last.ckpt"


def test_what_is_read_is_a_checkpoint_of_one_file(path):
    content, expected = checkpoint.read(path), make_content()
    for entry in ("state_dict", "current_model_state", "averaging_state"):
        torch.testing.assert_close(content[entry], expected[entry])
    (state,) = content["optimizer_states"]
    torch.testing.assert_close(
        state["state"], {1: expected["optimizer_states"][0]["state"]["first.weight"]}
    )
    groups = [(group["params"], group["lr"]) for group in state["param_groups"]]
    assert groups == [([0], 0.1), ([1], 0.2)]
    assert content["global_step"] == 3
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


def test_a_description_leaves_weights_on_the_disk(path):
    content = checkpoint.read_description(path)
    assert content["global_step"] == 3
    assert content["state_dict"] == {}
    assert "current_model_state" in content


def test_names_and_numbers_of_parameters_are_those_of_the_groups():
    state = make_content()["optimizer_states"][0]
    numbered = shard_files.number_parameters(state)
    # as torch numbers them in another process, by any numbers
    shuffled = {
        "state": {5: numbered["state"][1]},
        "param_groups": [{"params": [9], "lr": 0.1}, {"params": [5], "lr": 0.2}],
    }
    names = ["scale", "first.weight"]
    for saved in (numbered, shuffled):
        named = shard_files.name_parameters(saved, names)
        assert [*named["state"]] == ["first.weight"]
        assert [group["params"] for group in named["param_groups"]] == [[name] for name in names]


@pytest.mark.parametrize("name", [".metadata", "plain.pt", "__0_0.distcp"])
def test_a_changed_byte_and_a_missing_file_are_refused(path, name):
    file = path / name
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=re.escape(f"the checksum of {name} does not match")):
        checkpoint.read(path)
    assert not checkpoint.is_intact(path)
    file.unlink()
    with pytest.raises(CheckpointError, match="a file of the folder is unreadable"):
        checkpoint.read(path)


@pytest.mark.parametrize("name", [".metadata", "plain.pt"])
def test_a_file_without_a_checksum_is_refused(path, name):
    digests = json.loads((path / "sha256.json").read_text())
    del digests[name]
    (path / "sha256.json").write_text(json.dumps(digests))
    with pytest.raises(CheckpointError, match=f"has no checksum of {re.escape(name)}"):
        checkpoint.read(path)


class Attack:
    def __reduce__(self):
        return os.mkdir, ("attacked",)


def test_code_in_the_description_of_tensors_is_not_run(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (path / ".metadata").write_bytes(pickle.dumps(Attack()))
    monkeypatch.setattr(shard_files, "verify", lambda path: None)
    with pytest.raises(CheckpointError, match=r"it names (posix|nt)\.mkdir; none of it was run"):
        checkpoint.read(path)
    assert not Path("attacked").exists()


def test_what_is_no_tensor_is_refused_among_tensors(path, monkeypatch):
    (path / ".metadata").unlink()
    save({"state_dict/first.weight": 3}, storage_writer=FileSystemWriter(str(path)))
    monkeypatch.setattr(shard_files, "verify", lambda path: None)
    with pytest.raises(CheckpointError, match="unsafe or damaged"):
        checkpoint.read(path)


def test_a_folder_and_a_file_take_the_place_of_each_other(path):
    checkpoint.write_sealed(checkpoint.serialise(make_content(2.0)), path)
    assert path.is_file()
    assert checkpoint.read(path)["state_dict"]["first.weight"].eq(2).all()
    shard_files.write_shards(make_content(3.0), path, 0, lambda value: [value])
    assert checkpoint.read(path)["state_dict"]["first.weight"].eq(3).all()
    checkpoint.copy(path, path.with_name("best.ckpt"))
    assert checkpoint.is_intact(path.with_name("best.ckpt"))
    assert sorted(file.name for file in path.parent.iterdir()) == ["best.ckpt", "last.ckpt"]


def test_an_unfinished_folder_is_removed(path):
    run = path.parent
    (run / "checkpoints").mkdir()
    path.rename(run / "checkpoints" / "last.ckpt.writing")
    checkpoint.remove_unfinished(run)
    assert not [*(run / "checkpoints").iterdir()]
