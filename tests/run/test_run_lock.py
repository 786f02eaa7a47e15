"""One process at a time trains in a run directory, and the others are told which."""

import errno
import fcntl
import os
import platform
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny import TINY

from zoo.run import fit, run_dir
from zoo.run.resume import ResumePoint
from zoo.run.run_dir import RUN_LOCK, LockedError

pytestmark = pytest.mark.robustness

FIT = ["fit", "vit_comrope", *TINY, "trainer.fast_dev_run=true", "--run-dir", "run"]


@contextmanager
def hold(folder, seconds=60.0):
    """Another process that has the lock of a run directory for some seconds."""
    folder.mkdir(exist_ok=True)
    process = os.fork()
    if not process:
        with run_dir.lock(folder, "taken", name=RUN_LOCK):
            time.sleep(seconds)
        os._exit(0)
    while not (folder / RUN_LOCK).exists() or not (folder / RUN_LOCK).read_text():
        time.sleep(0.01)
    try:
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_the_second_to_train_in_a_run_directory_is_refused_until_the_first_has_died(zoo, tmp_path):
    with hold(tmp_path / "run") as process:
        code, _, message = zoo(*FIT, "--resume", "auto")
        assert code == 1
        named = (
            f"another zoo fit trains in this run directory: process {process} on {platform.node()}"
        )
        assert f"zoo: run: {named}, since 20" in message
        assert "--wait" in message
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [RUN_LOCK]
    code, _, message = zoo(*FIT, "--resume", "auto")
    assert code == 0, message
    assert not (tmp_path / "run" / RUN_LOCK).exists()


def test_the_second_waits_for_the_first_if_asked(zoo, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fit, "WAIT_SECONDS", 0.2)
    lock = fit._lock
    with hold(tmp_path / "run") as process:

        def end_first(run, locks, *, wait):
            is_locked = lock(run, locks, wait=wait)
            if not is_locked:
                os.kill(process, signal.SIGKILL)
            return is_locked

        monkeypatch.setattr(fit, "_lock", end_first)
        code, _, message = zoo(*FIT, "--resume", "auto", "--wait")
        assert code == 0, message
        assert f"process {process} on" in caplog.text


def test_two_new_runs_of_the_same_second_get_directories_of_their_own(zoo, tmp_path, monkeypatch):
    monkeypatch.setattr(run_dir, "name_new", lambda recipe: tmp_path / "runs" / "same")
    words = FIT[: FIT.index("--run-dir")]
    assert zoo(*words)[0] == zoo(*words)[0] == 0
    assert (tmp_path / "runs" / "same-2" / "recipe.yaml").is_file()


def test_without_locks_of_the_file_system_the_named_process_decides(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with run_dir.lock(tmp_path, "taken"):
        named = pytest.raises(LockedError, match=f"process {os.getpid()}")
        with named, run_dir.lock(tmp_path, "taken"):
            pass
        content = (tmp_path / run_dir.LOCK).read_text()
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitpid(dead, 0)
    (tmp_path / run_dir.LOCK).write_text(content.replace(str(os.getpid()), str(dead)))
    with run_dir.lock(tmp_path, "taken"):
        pass
    assert not (tmp_path / run_dir.LOCK).exists()
    (tmp_path / run_dir.LOCK).write_text(content.replace(platform.node(), "elsewhere"))
    with pytest.raises(LockedError, match="on elsewhere"), run_dir.lock(tmp_path, "taken"):
        pass


@pytest.mark.parametrize("resume", ["never", "auto"])
def test_a_run_that_cannot_begin_leaves_no_folder(resume, zoo, tmp_path):
    code, _, message = zoo(*FIT, "--resume", resume, "init_from=nowhere")
    assert code == 5
    assert "nowhere: no such checkpoint" in message
    assert not [*tmp_path.iterdir()]


def test_a_run_directory_whose_name_is_not_text_is_refused(zoo, tmp_path, monkeypatch):
    name = os.fsdecode(b"caf\xe9")
    # the last one was renamed after it had been trained
    point = ResumePoint(run=Path(name))
    monkeypatch.setattr(fit, "find_resume_point", lambda *_, **__: point)
    auto = ["--resume", "auto"]
    for words in (["--run-dir", name], ["--run-dir", name, *auto], auto):
        code, _, message = zoo(*FIT[:-2], *words)
        assert code == 2
        assert r"run directory: caf\udce9: its name is not UTF-8; rename it" in message
    assert not [*tmp_path.iterdir()]
