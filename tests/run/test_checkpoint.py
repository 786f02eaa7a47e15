"""Checkpoint files: whole or not at all, any change told, nothing of them run."""

import errno
import io
import os
import random
import time
import zipfile
from pathlib import Path

import pytest
import torch

from zoo.errors import CheckpointError, ZooError
from zoo.run import checkpoint
from zoo.run.callbacks.checkpointing import SealedCheckpointIO
from zoo.version import __version__

CONTENT = {
    "zoo": {"recipe": {}, "name": "tiny"},
    "state_dict": {"weight": torch.arange(100.0)},
    "global_step": 3,
}


@pytest.fixture
def path(tmp_path):
    """A small checkpoint."""
    checkpoint.write_sealed(checkpoint.serialise(CONTENT), tmp_path / "last.ckpt")
    return tmp_path / "last.ckpt"


def refuse(path, content):
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=str(path)) as printed:
        checkpoint.read(path)
    return printed.value


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_is_read_is_what_was_written(path):
    assert torch.equal(checkpoint.read(path)["state_dict"]["weight"], torch.arange(100.0))
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


def test_other_programs_read_a_sealed_file(path):
    assert torch.load(path, weights_only=True)["global_step"] == 3
    assert zipfile.ZipFile(path).comment.startswith(b"zoo sha256 ")


def test_a_thousand_changed_bytes_are_each_told(path, monkeypatch):
    """Header, metadata, tensors and seal alike, and before anything is unpickled."""
    monkeypatch.setattr(torch, "load", None)
    good, draw = path.read_bytes(), random.Random(0)
    for at in [0, len(good) - 1, *(draw.randrange(len(good)) for _ in range(998))]:
        bad = bytearray(good)
        bad[at] ^= draw.randrange(1, 256)
        assert refuse(path, bad).code == 5


@pytest.mark.parametrize("cut", [0, 1, 30, 77, 78, -1, -77])
def test_a_part_of_a_file_is_told(cut, path):
    assert "corrupt" in str(refuse(path, path.read_bytes()[:cut]))


class Payload:
    def __reduce__(self):
        return (Path.touch, (Path("hacked"),))


@pytest.mark.parametrize(
    "content",
    [
        Payload(),
        {"zoo": {}, "state_dict": Payload()},
        {"zoo": Payload, "state_dict": {}},
        {"zoo": {"recipe": torch.nn.Linear(2, 2)}, "state_dict": {}},
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_runs_even_under_a_true_checksum(content, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    if not zipped:
        file.write(checkpoint.NO_COMMENT)  # which the seal will replace
    checkpoint.write_sealed(file, Path("evil.ckpt"))
    with pytest.raises(CheckpointError, match="unsafe, it holds more than plain data"):
        checkpoint.read(Path("evil.ckpt"))
    assert not Path("hacked").exists()


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_full_disk_leaves_what_was_there(call, path, monkeypatch):
    before = path.read_bytes()
    target = (os, call) if call == "fsync" else (Path, call)
    with monkeypatch.context() as patch:
        patch.setattr(*target, full)
        with pytest.raises(
            ZooError,
            match=r"last.ckpt: cannot be written, No space left on device; still there: last.ckpt",
        ):
            checkpoint.write_sealed(checkpoint.serialise({}), path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


def test_unfinished_files_of_a_killed_run_are_removed(path):
    run = path.parent
    (run / "checkpoints").mkdir()
    for name in ("metrics.writing", "checkpoints/.last.ckpt.writing"):
        (run / name).touch()
    checkpoint.remove_unfinished(run)
    assert sorted(file.name for file in run.rglob("*")) == ["checkpoints", "last.ckpt"]


def test_the_background_saves_what_there_was(tmp_path, monkeypatch):
    disk, weight, published = (
        SealedCheckpointIO(background=True),
        torch.ones(3),
        checkpoint.write_sealed,
    )
    monkeypatch.setattr(
        checkpoint, "write_sealed", lambda *given: (time.sleep(0.2), published(*given))
    )
    disk.save_checkpoint({**CONTENT, "state_dict": {"weight": weight}}, tmp_path / "one.ckpt")
    weight.zero_()
    assert not (tmp_path / "one.ckpt").exists()
    disk.teardown()
    assert torch.equal(
        checkpoint.read(tmp_path / "one.ckpt")["state_dict"]["weight"], torch.ones(3)
    )


def test_what_goes_wrong_in_the_background_is_raised(tmp_path):
    disk = SealedCheckpointIO(background=True)
    disk.save_checkpoint(CONTENT, tmp_path / "nowhere" / "one.ckpt")
    with pytest.raises(ZooError, match=r"nowhere/one.ckpt: cannot be written"):
        disk.drain()
    disk.drain()


def test_a_checkpoint_of_an_older_version_is_refused_by_its_version(path):
    metadata = {**CONTENT["zoo"], "version": "0.1.0"}
    checkpoint.write_sealed(checkpoint.serialise({**CONTENT, "zoo": metadata}), path)
    message = rf"written by zoo 0\.1\.0; this is {__version__}, which renamed weights; no migration"
    with pytest.raises(CheckpointError, match=message) as refusal:
        checkpoint.read(path)
    assert refusal.value.code == 5
