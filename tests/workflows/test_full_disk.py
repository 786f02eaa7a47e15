"""A full disk: the path is named, no thread prints a traceback, and no result is lost."""

import errno
import os
from pathlib import Path

import pytest
from tensorboard.compat.tensorflow_stub.io.gfile import LocalFileSystem
from tiny import TINY

from zoo.errors import CheckpointError, ZooError
from zoo.run import checkpoint
from zoo.utils import write_json

pytestmark = pytest.mark.robustness


def fail(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_logger_that_cannot_write_is_told_in_a_line(zoo, monkeypatch):
    monkeypatch.setattr(LocalFileSystem, "_write", fail)
    code, _, message = zoo(
        "fit", "vit_comrope", *TINY, "trainer.logger=tensorboard", "--run-dir", "run"
    )
    assert code == 1
    assert "zoo: run: No space left on device; no checkpoint there" in message
    assert "Traceback" not in message


def test_a_benchmark_that_cannot_be_written_is_printed(zoo, monkeypatch):
    monkeypatch.setattr(Path, "write_text", fail)
    quick = ("shape=lm_toy", "device=cpu", "rounds=1", "peers=false", "measures=layer")
    code, out, message = zoo("bench", "none", *quick)
    assert code == 1
    assert "none" in out
    assert message.strip() == "zoo: bench/bench.json: No space left on device"


def test_an_explanation_whose_picture_cannot_be_written_is_printed(zoo, monkeypatch):
    monkeypatch.setattr(Path, "write_bytes", fail)
    code, out, message = zoo("show", "alibi", "picture=alibi.png")
    assert code == 1
    assert "cost, for" in out
    assert "zoo: alibi.png: cannot be written, No space left on device" in message


def test_a_diagnosis_that_cannot_be_written_is_put_elsewhere(zoo, monkeypatch, tmp_path):
    write = Path.write_text
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(elsewhere))
    assert zoo("fit", "vit_comrope", *TINY, "trainer.fast_dev_run=true", "--run-dir", "run")[0] == 0

    def write_elsewhere(path, *words, **options):
        return write(path, *words, **options) if path.parent == elsewhere else fail()

    monkeypatch.setattr(Path, "write_text", write_elsewhere)
    code, _, message = zoo("diagnose", "run", "samples=1", "limit=1", "controls=false")
    assert code == 1
    assert "run/diagnosis.html cannot be written, No space left on device; the page is" in message
    assert (elsewhere / "diagnosis.html").is_file()


def test_a_full_disk_is_noticed_before_the_work(zoo, monkeypatch):
    monkeypatch.setattr("tempfile._TemporaryFileWrapper.write", fail, raising=False)
    code, _, message = zoo("show", "alibi", "picture=alibi.png")
    assert (code, "alibi.png cannot be written, No space left on device" in message) == (2, True)
    code, _, message = zoo("bench", "none", "shape=lm_toy")
    assert (code, "bench cannot be written, No space left on device" in message) == (2, True)


def test_no_checkpoint_is_missed_beside_other_files(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ZooError) as failed:
        write_json({}, tmp_path / "end.json")
    assert str(failed.value).endswith("end.json: cannot be written, No space left on device")
    (tmp_path / "notes.txt").write_text("none of ours")
    with pytest.raises(CheckpointError) as failed:
        checkpoint.read_sealed(tmp_path / "notes.txt")
    assert "checkpoint there" not in str(failed.value)
    with pytest.raises(CheckpointError, match="no other checkpoint there"):
        checkpoint.read_sealed(tmp_path / "last.ckpt")
